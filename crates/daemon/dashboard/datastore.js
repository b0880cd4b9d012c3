// The datastore page: latency and threshold, throughput by disk, hosts and their windows.

import { ask, live } from "./live.js";
import { Course, h, s, say, watchWidth } from "./draw.js";
import { diskHref, stateOf, tile, turn } from "./host.js";
import { bandwidth, count, exactly, hostName, object, percent, rate, span, time } from "./words.js";

/** Names and sentences are asked for anew after so long, and no sooner than after so long where they are behind. */
const RENEW_MS = 10000;
const LEARN_MS = 1000;
const UNUSED = "None of its disks is attached on this host, so this host has no measurements.";

export class DatastorePage {
  constructor(main, name) {
    this.name = name;
    this.rows = new Map();
    this.known = {};
    this.learned = 0;
    this.badge = h("span", { class: "badge" });
    this.why = h("p", { class: "lead" });
    this.tiles = [tile("latency", "latency"), tile("threshold", "threshold"), tile("in flight / window, all hosts", "window"), tile("in flight / window, this host", "part"), tile("throughput, 4 KiB reads", "cost"), tile("reservations met", "met")];
    this.latency = new Course({
            title: "Latency and threshold", format: time, least: 100,
      series: [{ name: "latency of a 4 KiB I/O", mark: "m-datastore" }, { name: "threshold", mark: "m-threshold" }],
      band: (point) => point.engaged,
    });
    this.window = new Course({
            title: "I/O in flight and windows", format: count, least: 4,
      series: [{ name: "in flight, in 4 KiB reads", mark: "m-datastore" }, { name: "window of all hosts", mark: "m-limit" }, { name: "window of this host", mark: "m-turn" }],
    });
    this.board = h("div", { class: "board", role: "list" });
    this.scale = h("p", { class: "muted" });
    this.legend = h("ul", { class: "legend" }, [
      [[s("rect", { y: 3, width: 26, height: 8, class: "got" })], "throughput"],
      [[s("rect", { y: 3, width: 26, height: 8, class: "got shared" })], "limited by its shares"],
      [[s("rect", { y: 3, width: 26, height: 8, class: "got limited" })], "limited by a limit"],
      [[s("rect", { y: 0.5, x: 0.5, width: 25, height: 13, class: "part-of" })], "entitled by shares and reservation"],
      [[s("rect", { y: 0.5, x: 0.5, width: 25, height: 13, class: "part-told", fill: "url(#p-told)" })], "entitled, on another host"],
      [[s("path", { d: "M13 0V14", class: "reservation" }), s("path", { d: "M13 4l6 3l-6 3z", class: "reservation-flag" })], "reservation: the minimum"],
      [[s("rect", { x: 13, width: 13, height: 14, fill: "url(#p-beyond)" }), s("path", { d: "M13 0V14", class: "limit" })], "limit: the maximum"],
    ].map(([marks, text]) => h("li", {}, s("svg", { width: 26, height: 14, "aria-hidden": "true" }, marks), text)));
    this.hostBody = h("tbody", {});
    // What is known only while it is in use.
    this.measured = [
      h("dl", { class: "tiles" }, this.tiles.map((one) => one.node)),
      h("section", { "aria-labelledby": "h-who", class: "card" }, h("h2", { id: "h-who" }, "Share of throughput by disk"),
        this.scale, this.legend, this.board),
      h("div", { class: "two" },
        h("section", { class: "card" }, this.latency.node, h("p", { class: "muted" }, "shaded: congested")),
        h("section", { class: "card" }, this.window.node)),
      h("section", { "aria-labelledby": "h-hosts", class: "card" }, h("h2", { id: "h-hosts" }, "Hosts and their windows"),
        h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Hosts, the table" }, h("table", { class: "list" }, h("thead", {}, h("tr", {},
          ["host", "window", "in flight", "latency", "throughput", "disks", "last seen"].map((text, nth) => h("th", { scope: "col", class: nth ? "num" : null }, text)))), this.hostBody)))];
    main.append(h("div", { class: "title" }, h("h1", {}, `Datastore ${name}`), this.badge), this.why, ...this.measured);
    this.observer = watchWidth(this.board, (width) => { this.width = width; if (this.last) this.#board(this.last); });
    this.#learn();
    this.#past();
    this.asking = setInterval(() => this.#learn(), RENEW_MS);
  }

  close() {
    clearInterval(this.asking);
    this.observer.disconnect();
    this.latency.close();
    this.window.close();
  }

  press(key) {
    if (key !== "j" && key !== "k") return false;
    const links = [...this.board.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + (key === "j" ? 1 : -1)))]?.focus();
    return true;
  }

  /** What the daemon tells by names and in sentences. */
  async #learn() {
    this.learned = Date.now();
    try {
      const known = await ask("GET", `/v1/datastores/${encodeURIComponent(this.name)}`);
      this.known = known;
      if (known.problem) say(this.why, `${known.problem.what}: ${(known.problem.why || []).join(": ")}`);
      else if (!known.control) say(this.why, UNUSED);
      this.#show();
    } catch (problem) {
      if (problem.status === 404) say(this.why, `There is no datastore ${this.name}.`);
    }
  }

  /** Learns again where what is live shows hosts or disks whose names are not known yet, or another state than the sentence. */
  #catchUp(store) {
    const { control } = this.known;
    if (!control || Date.now() - this.learned < LEARN_MS) return;
    const host = (nth) => store.hosts[nth]?.host;
    const news = control.engaged !== store.engaged
      || store.hosts.some((one) => !control.hosts.some((known) => known.host === one.host))
      || store.others.some((one) => !control.shares.some((known) => known.key === one.key && known.host === host(one.host)));
    if (news) this.#learn();
  }

  async #past() {
    try {
      const past = await ask("GET", `/dashboard/past?datastore=${encodeURIComponent(this.name)}`);
      if (!live.hello) return;
      const rows = past.level.map((row) => object(live.hello.columns.level, row));
      const older = rows.map((row, nth) => ({ from: nth ? rows[nth - 1].at : row.at, ...level(row) }));
      const since = this.latency.points[0]?.at ?? Infinity;
      this.latency.points = older.filter((point) => point.at < since).concat(this.latency.points);
      this.latency.draw();
    } catch {
      // Then it begins now.
    }
  }

  beat({ at, datastores, disks }) {
    const store = datastores.find((one) => one.name === this.name);
    if (!store) {
      this.#leave(at);
      return;
    }
    if (this.used === false) this.#learn();
    this.used = true;
    for (const node of this.measured) node.hidden = false;
    stateOf(store, this.badge);
    this.#catchUp(store);
    const mine = store.hosts[0];
    [time(store.latency_us), store.threshold_us == null ? "none" : time(store.threshold_us),
      `${count(store.in_flight)} of ${count(store.window_all)}`, mine ? `${count(mine.in_flight)} of ${count(store.window)}` : "–",
      rate(store.cost_per_s), percent(store.reservations_met),
    ].forEach((text, nth) => say(this.tiles[nth].value, text));
    this.latency.add({ ...level(store), at, from: at - 1000 });
    this.latency.draw();
    this.window.add({ at, from: at - 1000, v: [store.in_flight, store.window_all, store.window] });
    this.window.draw();
    this.last = { store, disks: disks.filter((disk) => disk.datastore === this.name) };
    this.#show();
  }

  /** It is not in use: what it did while it was is not what it does. */
  #leave(at) {
    this.latency.add({ at, from: at - 1000, v: [null, null], engaged: false });
    this.window.add({ at, from: at - 1000, v: [null, null, null] });
    if (this.used === false) return;
    this.used = false;
    this.last = null;
    say(this.badge, "not in use on this host");
    delete this.badge.dataset.look;
    say(this.why, UNUSED);
    for (const node of this.measured) node.hidden = true;
    for (const one of this.tiles) say(one.value, "–");
    for (const list of [this.board, this.hostBody]) list.replaceChildren();
    this.rows.clear();
    this.#learn();
  }

  /** What is known now, under the names that are known. */
  #show() {
    if (!this.last) return;
    if (this.known.control && !this.known.problem) say(this.why, this.#because(this.last.store));
    if (this.width) this.#board(this.last);
    this.#hosts(this.last.store);
  }

    /** Why shares are applied or not, in a sentence that does not change every moment. In unusual states, the daemon's own sentence. */
  #because(store) {
    const { control } = this.known;
    const { mode, engaged, latency_us: latency, threshold_us: at } = store;
    const odd = mode !== "on" || at == null || !latency || store.alone || store.mute || store.trouble;
    if (odd || (!engaged && latency > at)) return sentence(control.why);
    const threshold = `the threshold of ${time(at)} (${control.congestion_threshold === "auto" ? "automatic" : "fixed"})`;
    return engaged ? `Latency rose above ${threshold}: shares and reservations are applied.`
      : `Latency is below ${threshold}: only limits delay I/O.`;
  }

  #hosts(store) {
    const known = this.known.control?.hosts || [];
    const most = Math.max(1, ...store.hosts.map((host) => Math.max(host.window, host.in_flight)));
    this.hostBody.replaceChildren(...store.hosts.map((host, nth) => {
      const name = hostName(host.host, known);
      const wide = (value) => (value / most) * 120;
      return h("tr", {},
        h("th", { scope: "row", title: host.host }, nth === 0 ? `${name} (this host)` : name),
        h("td", { class: "num" }, s("svg", { class: "window", width: 122, height: 14, "aria-hidden": "true" },
          s("rect", { class: "part-of", x: 0.5, y: 0.5, width: Math.max(1, wide(host.window)), height: 13 }),
          s("rect", { class: "got", y: 3, width: wide(host.in_flight), height: 8 })), h("span", { class: "amount" }, count(host.window))),
        h("td", { class: "num" }, count(host.in_flight)), h("td", { class: "num" }, time(host.latency_us)),
        h("td", { class: "num" }, rate(host.cost_per_s)), h("td", { class: "num" }, String(host.disks)),
        h("td", { class: "num" }, nth === 0 ? "–" : host.suspect ? `⚠ silent for ${span(host.silent_s)}` : `${span(host.silent_s)} ago`));
    }));
  }

  #board({ store, disks }) {
    const named = this.known.control?.shares || [];
    const hosts = this.known.control?.hosts || [];
    const here = disks.map((disk) => ({
      key: disk.name, name: disk.name, href: diskHref(disk.name), got: disk.did.units, part: store.engaged ? disk.entitled : null,
      shares: disk.shares, reservation: disk.reservation, limit: disk.limit, asks: (disk.demand ?? 0) > 0 || disk.did.units > 0, disk,
    }));
    const there = store.others.map((other) => {
      const host = store.hosts[other.host];
      const known = named.find((one) => one.key === other.key && one.host === host?.host);
      return {
        key: `${other.key}@${host?.host}`, name: other.merged ? "several disks" : known?.disk || `disk ${other.key.slice(0, 8)}`,
        href: known?.disk ? diskHref(known.disk) : null, on: host && hostName(host.host, hosts), got: null, part: store.engaged ? other.entitled : null,
        shares: other.shares, reservation: other.reservation, limit: other.limit, asks: other.demand > 0,
      };
    });
    const all = [...here, ...there].sort((a, b) => b.shares - a.shares || a.name.localeCompare(b.name));
    const weight = all.filter((one) => one.asks).reduce((sum, one) => sum + one.shares, 0);
    // What is got and due is to be seen well; a limit far beyond it need not fit.
    const most = Math.max(1, ...all.map((one) => Math.max(one.got ?? 0, one.part ?? 0, one.reservation)));
    const near = Math.max(most, ...all.map((one) => (one.limit && one.limit < most * 1.6 ? one.limit : 0)));
    const top = near * 1.04;
        say(this.scale, all.length === 0 ? "" : `Units of ${this.known.control ? count(this.known.control.io_unit_bytes / 1024) : 32} KiB a second; the full width is ${rate(top)}. `
      + (store.engaged ? "Congested: each disk gets its entitlement, and unused parts of others." : "Not congested: each disk gets what it asks for, up to its limit."));
    const there_now = new Set();
    all.forEach((one) => {
      there_now.add(one.key);
      const row = this.rows.get(one.key) || this.#row(one);
      this.rows.set(one.key, row);
      this.#draw(row, one, top, store, weight);
    });
    for (const [key, row] of this.rows) {
      if (!there_now.has(key)) { row.node.remove(); this.rows.delete(key); }
    }
    const wanted = all.map((one) => this.rows.get(one.key).node);
    if (wanted.some((node, nth) => node !== this.board.children[nth])) this.board.replaceChildren(...wanted);
  }

  #row(one) {
    const row = { svg: s("svg", { class: "share", role: "img", height: 26 }), gets: h("b", {}), words: h("span", { class: "muted" }) };
    row.name = h("span", {});
    row.where = h("span", { class: "muted" });
    row.node = h("div", { class: "row", role: "listitem" }, h("div", { class: "who" }, row.name, " ", row.where), row.svg, h("div", { class: "what" }, row.gets, " ", row.words));
    return row;
  }

  #draw(row, one, top, store, weight) {
    const narrow = this.width < 640;
    const width = narrow ? this.width : Math.max(160, this.width - 220 - 270 - 24);
    const x = (value) => Math.min(width - 1, (value / top) * (width - 1));
    const look = state(one);
    // The name of another host's disk may be learned later than the disk.
    if (row.node.dataset.disk !== one.name) {
      row.node.dataset.disk = one.name;
      row.name.replaceChildren(one.href ? h("a", { href: one.href }, one.name) : one.name);
    }
    const marks = [s("rect", { class: "track", y: 12.5, width, height: 1 })];
    if (one.part) marks.push(s("rect", { class: one.got == null ? "part-told" : "part-of", fill: one.got == null ? "url(#p-told)" : null, x: 0.5, y: 2.5, width: Math.max(1, x(one.part)), height: 21, rx: 2 }));
    if (one.got != null) marks.push(s("rect", { class: `got ${look}`, y: 8, width: x(one.got), height: 10 }));
    if (one.limit != null && one.limit <= top) {
      marks.push(s("rect", { x: x(one.limit), y: 2, width: Math.max(0, width - x(one.limit)), height: 22, fill: "url(#p-beyond)" }),
        s("path", { class: "limit", d: `M${x(one.limit)} 0V26` }));
    } else if (one.limit != null) {
      marks.push(s("text", { class: "tick", x: width - 2, y: 8, "text-anchor": "end" }, `limit ${count(one.limit)} →`));
    }
    if (one.reservation > 0) {
      const at = Math.max(1, x(one.reservation));
      marks.push(s("path", { class: "reservation", d: `M${at} 0V26` }), s("path", { class: "reservation-flag", d: `M${at} 9l7 4l-7 4z` }));
    }
    row.svg.setAttribute("width", width);
    row.svg.replaceChildren(...marks);
    const due = [`shares ${exactly(one.shares)}${weight && one.asks ? ` (${percent(one.shares / weight)})` : ""}`];
    if (one.reservation > 0) due.push(`no less than ${count(one.reservation)}`);
    if (one.limit != null) due.push(`no more than ${count(one.limit)}`);
    say(row.where, one.on ? `on ${one.on} · ${due[0]}` : due[0]);
        say(row.gets, one.got == null ? (one.part == null ? "" : `${rate(one.part)} entitled`) : rate(one.got));
    say(row.words, words(one, store));
    row.svg.setAttribute("aria-label", `${one.name}: ${one.got == null ? "on another host" : `throughput ${rate(one.got)}`}${one.part ? `, entitled to ${rate(one.part)}` : ""}, ${due.join(", ")}`);
    row.node.dataset.state = look;
  }
}

const level = (row) => ({ at: row.at, v: [row.latency_us || null, row.threshold_us], engaged: row.engaged });

/** The colour of a disk's bar: below its reservation, limited by its shares, limited by a limit, or free. */
function state({ disk, got, reservation }) {
  if (!disk) return "free";
  if (disk.unmet && got < reservation) return "unmet";
  if (["limit", "bandwidth", "group-limit"].includes(disk.cause)) return "limited";
  return disk.cause === "shares" ? "shared" : "free";
}

function words(one, store) {
  const { disk, part } = one;
    if (!disk) return one.asks ? "throughput known on that host only" : "idle";
  const waits = turn(disk.did);
  const by = {
    limit: `at its limit of ${count(disk.limit)}`, bandwidth: `at its limit of ${bandwidth(disk.bandwidth ?? 0)}`, "group-limit": "at its group's limit",
        shares: (part ? `entitled to ${count(part)}; ` : "") + (waits ? `waits ${time(waits)} because of shares` : "waits because of shares"), idle: "idle", stuck: "no I/O completes!", lease: "waits for its lease!", guest: "asks for no more",
    "io-thread": "the I/O thread is busy", filters: "waits in its filters", datastore: "waits for the datastore", nothing: "not delayed", unmeasured: "not measured",
  };
  if (state(one) === "unmet") return `⚠ below its reservation of ${count(one.reservation)}`;
  return by[disk.cause] + (store.engaged && part && disk.cause !== "shares" && disk.cause !== "idle" ? ` (entitled to ${count(part)})` : "");
}

/** As a sentence that stands alone. */
export function sentence(text) {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(whole) ? whole : whole + ".";
}
