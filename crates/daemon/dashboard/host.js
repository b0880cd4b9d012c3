// The host page: I/O threads with their disks, datastores, and all attached disks.

import { ask } from "./live.js";
import { bar, h, s, say, watchWidth, REACH_MS } from "./draw.js";
import { List } from "./table.js";
import { bandwidth, CAUSES, count, exactly, percent, rate, span, time } from "./words.js";

const CHIPS = 10;

export const diskHref = (name) => `#/disk/${encodeURIComponent(name)}`;
export const latency = ({ did }) => did.queue_us + did.filters_us + turn(did) + did.datastore_us;
export const turn = (did) => did.shares_us + did.window_us + did.limit_us + did.group_us + did.bandwidth_us;

/** A figure with its name. */
export function tile(name, id) {
  const value = h("dd", { "data-figure": id });
  return { value, node: h("div", { class: "tile" }, h("dt", {}, name), value) };
}

export class HostPage {
  constructor(main) {
    this.threads = new Map();
    this.stores = new Map();
    this.title = h("p", { class: "muted" });
    this.problems = h("div", {});
    this.tiles = [tile("I/Os", "iops"), tile("throughput", "bandwidth"), tile("outstanding", "outstanding"), tile("attached disks", "attached"), tile("delayed disks", "held")];
    this.threadBox = h("div", { class: "cards" });
    this.storeBox = h("div", { class: "cards" });
    const number = (name, by, text, wide) => ({ name, by, text: (disk) => text(by(disk)), num: true, wide });
    this.list = new List({
      label: "Disks", key: (disk) => disk.name, href: (disk) => diskHref(disk.name), sorted: "I/Os /s",
      empty: "No disk is attached. tidegate disk create NAME --size 10G --attach",
      columns: [
        { name: "disk", text: (disk) => disk.name },
        { name: "datastore", text: (disk) => disk.datastore, wide: true },
        number("I/Os /s", (disk) => disk.did.iops, count),
        number("throughput", (disk) => disk.did.bytes, bandwidth, true),
        number("latency", latency, time),
        number("outstanding", (disk) => disk.did.outstanding, count, true),
        number("shares", (disk) => disk.shares, exactly, true),
        { name: "limited by", text: (disk) => CAUSES[disk.cause].join(" "), by: (disk) => disk.cause, sign: (disk) => disk.cause },
      ],
    });
    main.append(
      h("h1", {}, "Host"), this.title, this.problems,
      h("dl", { class: "tiles" }, this.tiles.map((one) => one.node)),
      h("section", { "aria-labelledby": "h-threads" }, h("h2", { id: "h-threads" }, "I/O threads"), this.threadBox),
      h("section", { "aria-labelledby": "h-stores" }, h("h2", { id: "h-stores" }, "Datastores"), this.storeBox),
      h("section", { "aria-labelledby": "h-disks" }, h("h2", { id: "h-disks" }, "Disks"), this.list.node));
    this.#status();
    this.asking = setInterval(() => this.#status(), 10000);
  }

  close() {
    clearInterval(this.asking);
    for (const card of this.threads.values()) card.observer.disconnect();
  }

  press(key) { return this.list.press(key); }

  async #status() {
    try {
      const status = await ask("GET", "/v1/status");
      say(this.title, `tidegate ${status.version}, process ${status.pid}, up for ${span(status.uptime_s)} · ${status.clients} guests and clients · dense mode ${status.dense.on ? "on" : "off"} · ${status.root}`);
      this.problems.replaceChildren(...status.problems.map((problem) => h("p", { class: "card warning" },
        h("b", {}, `⚠ ${problem.what}`), ": ", (problem.why || []).join(": "), problem.remedy ? h("br", {}) : null, problem.remedy)));
    } catch {
      // The banner says that the daemon does not answer.
    }
  }

  beat({ at, threads, datastores, disks }) {
    const sum = (of) => disks.reduce((all, disk) => all + of(disk), 0);
    const held = disks.filter((disk) => ["limit", "bandwidth", "group-limit", "shares"].includes(disk.cause)).length;
    [rate(sum((disk) => disk.did.iops)), bandwidth(sum((disk) => disk.did.bytes)), count(sum((disk) => disk.did.outstanding)),
      String(disks.length), held ? `${held} of ${disks.length}` : "none",
    ].forEach((text, nth) => say(this.tiles[nth].value, text));
    const used = threads.filter((thread) => thread.state !== "parked");
    for (const thread of used) this.#thread(at, thread, disks.filter((disk) => disk.thread === thread.thread));
    for (const [number, card] of this.threads) {
      if (used.some((thread) => thread.thread === number)) continue;
      card.observer.disconnect();
      card.node.remove();
      this.threads.delete(number);
    }
    const names = new Set(datastores.map((one) => one.name));
    for (const one of datastores) this.#store(one, disks.filter((disk) => disk.datastore === one.name));
    for (const [name, card] of this.stores) {
      if (!names.has(name)) { card.node.remove(); this.stores.delete(name); }
    }
    if (names.size === 0) {
      if (!this.storeBox.textContent) this.storeBox.append(h("p", { class: "muted" }, "No datastore is in use: no disk is attached."));
    } else if (this.storeBox.firstElementChild?.tagName === "P") this.storeBox.firstElementChild.remove();
    this.list.update(disks);
  }

  #thread(at, thread, disks) {
    let card = this.threads.get(thread.thread);
    if (!card) {
      card = this.#threadCard(thread.thread);
      this.threads.set(thread.thread, card);
      this.threadBox.append(card.node);
    }
    const asleep = Math.max(0, 1 - thread.busy - thread.spinning);
    card.parts = [
      { fill: "var(--busy)", part: thread.busy, name: `busy ${percent(thread.busy)}` },
      { fill: "url(#p-spin)", part: thread.spinning, name: `polling ${percent(thread.spinning)}` },
    ];
        const words = `busy ${percent(thread.busy)}, polling ${percent(thread.spinning)}, sleeping ${percent(asleep)}`;
    say(card.busy, `${thread.state === "active" ? "" : `${stateOfThread(thread)} · `}${percent(thread.busy)} busy`);
    card.node.classList.toggle("full", thread.busy >= 0.9);
    say(card.words, `${thread.busy >= 0.9 ? "⚠ fully busy · " : ""}polling ${percent(thread.spinning)} · sleeping ${percent(asleep)} · ${rate(disks.reduce((all, disk) => all + disk.did.iops, 0))}`);
    card.bar.setAttribute("aria-label", `I/O thread ${thread.thread}: ${words}`);
    card.past.push([at, thread.busy]);
    while (card.past[0][0] < at - REACH_MS) card.past.shift();
    card.draw();
    const busiest = [...disks].sort((a, b) => b.did.iops - a.did.iops || a.name.localeCompare(b.name));
    const shown = card.all ? busiest : busiest.slice(0, CHIPS);
    const key = shown.map((disk) => disk.name).join();
    if (key !== card.key) {
      card.key = key;
      card.chips.replaceChildren(...shown.map((disk) => h("li", {}, h("a", { href: diskHref(disk.name) }, disk.name, " ", h("span", { class: "muted" })))));
      const rest = busiest.length - shown.length;
      if (rest > 0) card.chips.append(h("li", {}, h("button", { type: "button", class: "quiet", onclick: () => { card.all = true; card.key = null; } }, `and ${rest} more`)));
      if (busiest.length === 0) card.chips.append(h("li", { class: "muted" }, "no disks"));
    }
    shown.forEach((disk, nth) => say(card.chips.children[nth].querySelector("span"), count(disk.did.iops)));
  }

  #threadCard(number) {
    const card = {
      bar: s("svg", { class: "usage", role: "img", height: 18 }),
      spark: s("svg", { class: "spark", "aria-hidden": "true", height: 26 }),
      busy: h("b", {}), words: h("p", { class: "muted" }), chips: h("ul", { class: "chips", "aria-label": `Disks on I/O thread ${number}` }),
      past: [], parts: [], width: 0, key: null, all: false,
    };
    card.node = h("article", { class: "card", "data-thread": number },
      h("header", {}, h("h3", {}, h("a", { href: "#/threads" }, `I/O thread ${number}`)), card.busy), card.bar, card.words, card.spark, card.chips);
    card.draw = () => {
      if (!card.width) return;
      bar(card.bar, card.width, 18, card.parts);
      const now = card.past.at(-1)[0];
      const points = card.past.map(([at, busy]) => `${(card.width * (1 - (now - at) / REACH_MS)).toFixed(1)},${(24 - busy * 22).toFixed(1)}`);
      card.spark.setAttribute("width", card.width);
      card.spark.replaceChildren(s("line", { class: "grid", x1: 0, x2: card.width, y1: 24.5, y2: 24.5 }), s("polyline", { class: "line m-datastore", points: points.join(" ") }));
    };
    card.observer = watchWidth(card.node.querySelector("header"), (width) => { card.width = width; if (card.past.length) card.draw(); });
    return card;
  }

  #store(store, disks) {
    let card = this.stores.get(store.name);
    if (!card) {
      card = { state: h("span", { class: "badge" }), words: h("p", {}), more: h("p", { class: "muted" }) };
      card.node = h("article", { class: "card" },
        h("header", {}, h("h3", {}, h("a", { href: `#/datastore/${encodeURIComponent(store.name)}` }, store.name)), card.state), card.words, card.more);
      this.stores.set(store.name, card);
      this.storeBox.append(card.node);
    }
    stateOf(store, card.state);
    say(card.words, store.threshold_us == null ? `latency ${time(store.latency_us)}, no threshold`
      : `latency ${time(store.latency_us)}, threshold ${time(store.threshold_us)}`);
    say(card.more, `${disks.length} disk${disks.length === 1 ? "" : "s"} here · ${store.hosts.length} host${store.hosts.length === 1 ? "" : "s"} · ${count(store.in_flight)} in flight, window ${count(store.window_all)}`);
  }
}

/** The state of an I/O thread: a sign and a word. */
export function stateOfThread({ state }) {
  return { active: "✓ active", locked: "⊘ locked", leaving: "… leaving", draining: "… draining", parked: "· parked" }[state];
}

/** Whether a datastore is congested, as a badge. */
export function stateOf(store, badge) {
  const [word, look] = store.mode === "off" ? ["○ control is off", "plain"]
        : store.trouble || store.alone || store.mute ? ["⚠ hosts cannot coordinate", "bad"]
      : !store.engaged ? ["✓ not congested", "good"]
        : store.mode === "observe" ? ["● congested, observed only", "warn"] : ["● congested: shares are applied", "warn"];
  say(badge, word);
  badge.dataset.look = look;
}
