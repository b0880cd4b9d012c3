// The page of I/O threads: what each does, how long requests wait for it, which disks it serves, and moves over time.

import { live } from "./live.js";
import { h, s, say, watchWidth, REACH_MS } from "./draw.js";
import { diskHref, stateOfThread } from "./host.js";
import { List } from "./table.js";
import { clock, count, percent, time } from "./words.js";

/** Rows of the picture: disks that moved come first, then the busiest. */
const ROWS = 24;
const MOVES = 1000;
const ROW = 22;
const LEFT = 170;

/** Where each disk was, since this page was loaded: changes only. */
const homes = new Map();
let moves = [];
let begun = null;

live.addEventListener("hello", ({ detail }) => {
  if (!detail.another) return;
  homes.clear();
  moves = [];
  begun = null;
});
live.addEventListener("beat", ({ detail: { at, disks } }) => {
  begun ??= at;
  for (const { name, thread } of disks) {
    const past = homes.get(name) || homes.set(name, []).get(name);
    const last = past.at(-1);
    if (last?.thread === thread) continue;
    if (last) moves = [{ at, disk: name, from: last.thread, to: thread, number: moves.length ? moves[0].number + 1 : 0 }, ...moves].slice(0, MOVES);
    past.push({ at, thread });
    while (past.length > 1 && past[1].at < at - REACH_MS) past.shift();
  }
  const here = new Set(disks.map((disk) => disk.name));
  for (const name of homes.keys()) if (!here.has(name)) homes.delete(name);
});

/** The mean time that requests of these disks waited in their queues, in microseconds. */
export function queueDelay(disks) {
  const all = disks.reduce((sum, { did }) => sum + did.iops, 0);
  return all > 0 ? disks.reduce((sum, { did }) => sum + did.iops * did.queue_us, 0) / all : null;
}

export class ThreadsPage {
  constructor(main) {
    const number = (name, by, text, wide) => ({ name, by, text: (row) => text(by(row)), num: true, wide });
    this.list = new List({
      label: "I/O threads", key: (thread) => thread.thread, sorted: "thread", down: false, empty: "No I/O thread is in use.",
      columns: [
        { name: "thread", text: (thread) => String(thread.thread), by: (thread) => thread.thread },
        { name: "state", text: (thread) => stateOfThread(thread), sign: (thread) => (thread.busy >= 0.9 ? "stuck" : "") },
        number("busy", (thread) => thread.busy, percent),
        number("polling", (thread) => thread.spinning, percent, true),
        number("sleeping", (thread) => Math.max(0, 1 - thread.busy - thread.spinning), percent, true),
        number("I/Os /s", (thread) => thread.iops, count),
        number("queueing delay", (thread) => thread.delay ?? -1, (us) => (us < 0 ? "–" : time(us))),
        number("disks", (thread) => thread.disks, count),
        { name: "names", text: (thread) => thread.names.join(" "), wide: true },
      ],
    });
    this.moves = new List({
      label: "Moves", key: (move) => move.number, href: (move) => diskHref(move.disk), sorted: "disk", empty: "No disk has moved since this page was loaded.",
      columns: [
        { name: "disk", text: (move) => move.disk, by: (move) => move.number },
        { name: "when", text: (move) => clock(move.at), by: (move) => move.at },
        number("from", (move) => move.from, String),
        number("to", (move) => move.to, String),
      ],
    });
    this.picture = s("svg", { class: "homes", role: "img" });
    this.more = h("p", { class: "muted" });
    const box = h("div", { class: "card" }, this.picture, this.more);
    main.append(
      h("h1", {}, "I/O threads"),
      h("p", { class: "muted" }, "Queueing delay: how long requests waited in their queues until the thread took them, as a mean of the last second. On the command line: tidegate thread list."),
      h("section", { "aria-label": "I/O threads" }, this.list.node),
      h("section", { "aria-labelledby": "h-homes" }, h("h2", { id: "h-homes" }, "Disks and their threads, over five minutes"), box),
      h("section", { "aria-labelledby": "h-moves" }, h("h2", { id: "h-moves" }, "Moves"), this.moves.node));
    this.width = 0;
    this.observer = watchWidth(box, (width) => { this.width = width; this.#draw(); });
  }

  close() { this.observer.disconnect(); }

  press(key) { return this.list.press(key); }

  beat({ at, threads, disks }) {
    this.now = at;
    const shown = threads.filter((thread) => thread.state !== "parked").map((thread) => {
      const its = disks.filter((disk) => disk.thread === thread.thread);
      return { ...thread, iops: its.reduce((sum, { did }) => sum + did.iops, 0), delay: queueDelay(its), names: its.map((disk) => disk.name) };
    });
    this.list.update(shown);
    this.moves.update(moves);
    const busiest = [...disks].sort((a, b) => (homes.get(b.name)?.length > 1) - (homes.get(a.name)?.length > 1) || b.did.iops - a.did.iops || a.name.localeCompare(b.name));
    this.disks = busiest.slice(0, ROWS).map((disk) => disk.name);
    const rest = disks.length - this.disks.length;
    say(this.more, rest > 0 ? `${rest} more disks have not moved, or have less I/O.` : "");
    this.#draw();
  }

  #draw() {
    if (!this.width || !this.disks) return;
    const { now, width } = this;
    const x = (at) => LEFT + Math.max(0, 1 - (now - at) / REACH_MS) * (width - LEFT);
    const rows = this.disks.map((name, nth) => {
      const past = homes.get(name) || [];
      const top = nth * ROW;
      const parts = past.flatMap(({ at, thread }, i) => {
        const [from, to] = [x(Math.max(at, begun)), x(past[i + 1]?.at ?? now)];
        const wide = to - from > 16;
        return [
          s("rect", { x: from, y: top + 2, width: Math.max(1, to - from), height: ROW - 5, class: `home t${thread % 4}`, "data-thread": thread }),
          wide && s("text", { x: from + 5, y: top + ROW - 7, class: "home-number" }, String(thread)),
        ].filter(Boolean);
      });
      return s("g", { "data-disk": name }, s("text", { x: 0, y: top + ROW - 7, class: "tick" }, name.length > 22 ? `${name.slice(0, 21)}…` : name), ...parts);
    });
    const height = this.disks.length * ROW + 18;
    const axis = [["5 min ago", LEFT, "start"], ["now", width, "end"]].map(([text, at, anchor]) => s("text", { x: at, y: height - 4, class: "tick", "text-anchor": anchor }, text));
    this.picture.setAttribute("width", width);
    this.picture.setAttribute("height", height);
    this.picture.setAttribute("aria-label", this.disks.map((name) => `${name}: thread ${homes.get(name)?.at(-1)?.thread ?? "unknown"}`).join(", "));
    this.picture.replaceChildren(...rows, ...axis);
  }
}
