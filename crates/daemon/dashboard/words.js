// Formats numbers with units, and gives the short texts for causes and hosts.

// Narrow, and no line ends there.
const THIN = "\u202f";

function digits(number, significant) {
  if (number === 0) return "0";
  const whole = Math.floor(Math.log10(Math.abs(number))) + 1;
  return number.toFixed(Math.max(0, significant - whole));
}

/** 1234 as "1 234", 1234567 as "1.23 M". */
export function count(number) {
  if (number == null || Number.isNaN(number)) return "–";
  const size = Math.abs(number);
  if (size >= 1e9) return digits(number / 1e9, 3) + THIN + "G";
  if (size >= 1e6) return digits(number / 1e6, 3) + THIN + "M";
  if (size >= 1e5) return digits(number / 1e3, 3) + THIN + "k";
  if (size < 10 && !Number.isInteger(number)) return number.toFixed(1);
  return String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** Exactly, with its thousands apart. */
export function exactly(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** A rate of things. */
export const rate = (number) => count(number) + THIN + "/s";

/** Bytes in binary multiples. */
export function bytes(number) {
  if (number == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let nth = 0;
  while (Math.abs(number) >= 1024 && nth + 1 < units.length) {
    number /= 1024;
    nth += 1;
  }
  return (nth === 0 ? String(Math.round(number)) : digits(number, 3)) + THIN + units[nth];
}

/** Bytes a second. */
export const bandwidth = (number) => bytes(number) + "/s";

/** A time in microseconds. */
export function time(us) {
  if (us == null || Number.isNaN(us)) return "–";
  if (us === 0) return "0";
  if (us < 1e3) return digits(us, us < 10 ? 2 : 3) + THIN + "µs";
  if (us < 1e6) return digits(us / 1e3, 3) + THIN + "ms";
  return digits(us / 1e6, 3) + THIN + "s";
}

/** A part of a whole. */
export function percent(part) {
  const shown = part * 100;
  return (shown > 0 && shown < 1 ? "<1" : String(Math.round(shown))) + THIN + "%";
}

/** How long something lasted. */
export function span(seconds) {
  if (seconds < 120) return Math.round(seconds) + THIN + "s";
  if (seconds < 7200) return Math.round(seconds / 60) + THIN + "min";
  if (seconds < 172800) return Math.round(seconds / 3600) + THIN + "h";
  return Math.round(seconds / 86400) + " days";
}

const two = (number) => String(number).padStart(2, "0");

/** A moment of today; of another day with its date. */
export function clock(ms) {
  const at = new Date(ms);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const today = new Date().toDateString() === at.toDateString();
  return today ? time : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** What limits a disk: a sign and a few words. */
export const CAUSES = {
  unmeasured: ["?", "not measured"],
  idle: ["·", "idle"],
  lease: ["‼", "its lease"],
    stuck: ["‼", "I/O that does not complete"],
  limit: ["⊤", "its limit"],
  bandwidth: ["⊤", "its bandwidth limit"],
  "group-limit": ["⊤", "its group's limit"],
  shares: ["◔", "its shares"],
  filters: ["≡", "its filters"],
  "io-thread": ["⚙", "the I/O thread"],
  datastore: ["◷", "the datastore"],
  guest: ["↓", "asks for no more"],
  nothing: ["✓", "nothing"],
};

/**
 * The short name of a host, of those that are known: what it calls itself, with the beginning of its identity where
 * another is called the same; that alone where it does not say.
 */
export function hostName(host, known) {
  const digits = host.slice(0, 8);
  const name = known.find((one) => one.host === host)?.name;
  if (!name) return digits;
  return known.some((one) => one.name === name && one.host !== host) ? `${name} (${digits})` : name;
}

/** Rows whose columns were told once, as objects. */
export function rows(columns, list) {
  return list.map((row) => object(columns, row));
}

export function object(columns, row) {
  const made = {};
  columns.forEach((column, nth) => { made[column] = row[nth]; });
  return made;
}
