// The disk page: what limits the disk, where its I/Os spend their time, its filters, and its policy.

import { ask, live } from "./live.js";
import { MissCurve } from "./curve.js";
import { Course, h, Heat, s, say, bar, watchWidth } from "./draw.js";
import { sentence } from "./datastore.js";
import { latency, tile, turn } from "./host.js";
import { PolicyForm } from "./policy.js";
import { SnapshotTree } from "./snapshots.js";
import { bandwidth, bytes, CAUSES, count, exactly, hostName, object, percent, rate, span, time } from "./words.js";

const STAGES = [
  { name: "datastore", fill: "var(--datastore)" },
    { name: "waiting in the scheduler", fill: "url(#p-turn)" },
  { name: "filters", fill: "url(#p-filters)" },
  { name: "guest's queue", fill: "url(#p-queue)" },
];
const REASONS = { shares: "other disks' shares", window: "the window is full", limit: "its limit", "group-limit": "its group's limit", bandwidth: "its bandwidth limit" };

const stages = (did) => [did.datastore_us, turn(did), did.filters_us, did.queue_us];

export class DiskPage {
  constructor(main, name) {
    this.name = name;
    this.badge = h("span", { class: "badge" });
    this.where = h("p", { class: "muted" });
    this.because = h("p", { class: "lead", "aria-live": "polite", "data-figure": "because" });
    this.remedy = h("p", {});
    this.notes = h("ul", { class: "notes" });
    this.partBar = s("svg", { class: "usage none", height: 22, role: "img", "aria-label": "no I/O" });
    this.partList = h("ul", { class: "legend" });
    this.tiles = [tile("I/Os", "iops"), tile("throughput", "bandwidth"), tile("latency", "latency"), tile("median", "median"), tile("99 %", "p99"), tile("outstanding", "outstanding"), tile("errors since attached", "errors")];
    this.stages = new Course({ title: "Mean latency by stage", series: STAGES, format: time, least: 100, stack: true });
    this.speed = new Course({ title: "I/Os a second", format: rate, least: 10, series: [{ name: "I/Os", mark: "m-datastore" }, { name: "units", mark: "m-turn" }, { name: "limit", mark: "m-limit" }, { name: "entitled", mark: "m-threshold" }] });
    this.heat = new Heat("Latency distribution", time);
    this.curve = new MissCurve();
    this.ops = h("tbody", {});
    this.filters = h("ol", { class: "filters" });
    this.layout = h("ul", { class: "members" });
    this.layoutCard = h("section", { class: "card", "aria-labelledby": "h-layout", hidden: true }, h("h2", { id: "h-layout" }, "Layout"), this.layout);
    this.flash = h("ul", { class: "members" });
    this.flashCard = h("section", { class: "card", "aria-labelledby": "h-flash", hidden: true }, h("h2", { id: "h-flash" }, "Flash cache"), this.flash);
    this.snapshots = new SnapshotTree(name);
    this.facts = h("dl", { class: "facts" });
    this.form = new PolicyForm(name, (disk) => this.#show(disk));
    // What only the host knows that serves it.
    this.measured = [
      h("dl", { class: "tiles" }, this.tiles.map((one) => one.node)),
      h("div", { class: "two" },
        h("section", { class: "card" }, this.stages.node), h("section", { class: "card" }, this.speed.node),
        h("section", { class: "card" }, this.heat.node), h("section", { class: "card" }, this.curve.node),
        h("section", { class: "card", "aria-labelledby": "h-ops" }, h("h2", { id: "h-ops" }, "By operation"),
          h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "By operation, the table" }, h("table", { class: "list" },
            h("thead", {}, h("tr", {}, ["", "/s", "throughput", "median", "95 %", "99 %", "since attached"].map((text, nth) => h(nth ? "th" : "td", { scope: nth ? "col" : null, class: nth ? "num" : null }, text)))), this.ops)))),
    ];
    main.append(
      h("div", { class: "title" }, h("h1", {}, `Disk ${name}`), this.badge), this.where,
      h("section", { class: "card", "aria-label": "What limits it" }, this.because, this.remedy, this.partBar, this.partList, this.notes),
      ...this.measured, this.layoutCard, this.flashCard, this.snapshots.node, this.form.node,
      h("section", { class: "card", "aria-labelledby": "h-filters" }, h("h2", { id: "h-filters" }, "Filters, top first"), this.filters, this.facts));
    this.observer = watchWidth(this.partBar.parentElement, (width) => { this.width = width - 36; if (this.parts) bar(this.partBar, this.width, 22, this.parts); });
    this.#describe().then(() => this.#past());
    this.asking = setInterval(() => this.#describe(), 5000);
  }

  close() {
    clearInterval(this.asking);
    this.observer.disconnect();
    for (const drawn of [this.stages, this.speed, this.heat, this.curve]) drawn.close();
  }

  press(key) {
    if (key !== "p") return false;
    this.form.focus();
    return true;
  }

  async #describe() {
    try {
      this.#show(await ask("GET", `/v1/disks/${encodeURIComponent(this.name)}`));
      this.snapshots.ask();
      if (this.described.attached) {
        this.#explain();
        this.#missRatios();
      }
    } catch (problem) {
      if (problem.status === 404) {
        say(this.badge, "not there");
        say(this.because, `There is no disk ${this.name}.`);
        say(this.remedy, "");
      }
    }
  }

  #show(disk) {
    this.described = disk;
    if (disk.attached) this.elsewhere = null;
    this.form.show(disk, this.elsewhere);
    this.#measure(disk.attached && this.seen !== false);
    this.where.replaceChildren("on datastore ", h("a", { href: `#/datastore/${encodeURIComponent(disk.datastore)}` }, disk.datastore),
      `, ${bytes(disk.size_bytes)}${disk.attached ? `, I/O thread ${disk.thread}, ${disk.io}` : ""}${this.elsewhere ? "" : " · "}${this.elsewhere ? "" : disk.clients.length ? disk.clients.map((client) => `${client.kind} ${client.peer} for ${span(client.connected_s)}`).join("; ") : "no client is connected"}`);
    if (!disk.attached) this.#seek(disk);
    if (this.elsewhere) {
      say(this.badge, `on ${this.elsewhere.on}`);
      delete this.badge.dataset.look;
            say(this.because, `Host ${this.elsewhere.on} serves it, so only that host has its measurements. You can change its policy here too. The change takes effect there within a second.`);
      say(this.remedy, "");
    } else if (!disk.attached) {
      say(this.badge, disk.problem ? "⚠ not attached" : "not attached");
      say(this.because, disk.problem ? sentence([disk.problem.what, ...(disk.problem.why || [])].join(": ")) : "It is not attached, so guests and clients cannot use it.");
      say(this.remedy, disk.problem?.remedy || `tidegate disk attach ${this.name}`);
    }
    this.#members(disk);
    this.#flashCache(disk.flash);
    const filters = disk.filters.map((filter) => h("li", {}, h("code", {}, filter)));
    this.filters.replaceChildren(...(filters.length ? filters : [h("li", { class: "muted" }, "none")]));
    const facts = {
            "seen by a guest": `${disk.cache}, blocks of ${disk.block_size_bytes} bytes${disk.read_only ? ", read-only" : ""}`,
      serial: disk.serial, queues: String(disk.queues), NBD: disk.nbd_uri, "vhost-user": disk.vhost_user_socket,
    };
    this.facts.replaceChildren(...Object.entries(facts).filter(([, text]) => text)
      .map(([term, text]) => h("div", {}, h("dt", {}, term), h("dd", {}, text))));
  }

  /** The flash cache: its mode, how full it is, how much it answers, and what only it has. */
  #flashCache(flash) {
    this.flashCard.hidden = !flash;
    if (!flash) return;
    const lines = [`${flash.cache}, ${flash.mode}${flash.here ? "" : ` on host ${flash.host}`}`];
    const at = flash.at_work;
    if (at) {
      const reads = at.hits_total + at.misses_total;
      lines.push(`${bytes(at.size_bytes - at.free_bytes)} of ${bytes(at.size_bytes)} used, on ${count(at.devices)} ${at.devices === 1 ? "device" : "devices"}`);
      lines.push(reads ? `${percent(at.hits_total / reads)} of ${count(reads)} page reads hit since it was attached` : "no reads yet");
      lines.push(`${bytes(at.dirty_bytes)} only on flash${at.dirty_age_s == null ? "" : ` (for ${span(at.dirty_age_s)})`}, ${bytes(at.flash_written_bytes_total)} written to flash`);
      if (at.unreadable_pages > 0) lines.push(`⚠ ${count(at.unreadable_pages)} pages that only flash has cannot be read: reads of them fail`);
      if (at.corrupt_blocks_total > 0) lines.push(`⚠ ${at.corrupt_blocks_total} times a block on flash was not as it was written`);
    } else if (flash.has_dirty) {
      lines.push("some writes are only on flash");
    }
    if (flash.problem) lines.push(sentence([flash.problem.what, ...(flash.problem.why || [])].join(": ")));
    this.flash.replaceChildren(...lines.map((line) => h("li", {}, line)));
  }

  /** The layout as a tree: mirrors of a stripe, and their members with their states. */
  #members(disk) {
    const members = disk.members || [];
    this.layoutCard.hidden = members.length === 0;
    const state = (member) => {
      const done = member.rebuild ? `, ${percent(member.rebuild.copied_bytes / Math.max(1, member.rebuild.total_bytes))} of ${bytes(member.rebuild.total_bytes)}` : "";
      const look = { "in-sync": "", rebuilding: "↻ ", stale: "⚠ ", away: "⚠ " }[member.state] || "";
      return `${look}${member.state.replace("-", " ")}${done}`;
    };
    const one = (member) => h("li", { "data-state": member.state },
      `member ${member.member} on `, h("a", { href: `#/datastore/${encodeURIComponent(member.datastore)}` }, member.datastore), `: ${state(member)}`,
      member.faults_total ? `, ${count(member.faults_total)} failed I/Os` : "",
      member.problem ? h("p", { class: "muted" }, sentence([member.problem.what, ...(member.problem.why || [])].join(": "))) : "");
    const mirrors = [...new Set(members.map((member) => member.mirror))];
    const below = mirrors.length < 2 ? members.map(one)
      : mirrors.map((mirror) => h("li", {}, `mirror ${mirror}`, h("ul", { class: "members" }, members.filter((member) => member.mirror === mirror).map(one))));
    const scrub = disk.scrub ? [h("li", { class: "muted" }, `${disk.scrub.running ? "comparing members" : "members compared"}: ${bytes(disk.scrub.compared_bytes)} of ${bytes(disk.scrub.total_bytes)}, ${count(disk.scrub.different)} differences, ${count(disk.scrub.repaired)} repaired`)] : [];
    this.layout.replaceChildren(h("li", {}, disk.layout, h("ul", { class: "members" }, below)), ...scrub);
  }

  /** What is measured is shown while it is: what the disk did before it was detached is not what it does. */
  #measure(shown) {
    for (const node of this.measured) node.hidden = !shown;
    if (shown) return;
    for (const one of this.tiles) say(one.value, "–");
    for (const list of [this.ops, this.notes, this.partList, this.partBar]) list.replaceChildren();
    this.parts = null;
    this.partBar.classList.add("none");
    this.partBar.setAttribute("aria-label", "no I/O");
  }

  /** Whether another host serves a disk that is not attached here: those of a datastore tell each other. */
  async #seek(disk) {
    let found = null;
    try {
      const { control } = await ask("GET", `/v1/datastores/${encodeURIComponent(disk.datastore)}`);
      const share = control?.shares.find((one) => one.disk === disk.name && !control.hosts.some((host) => host.here && host.host === one.host));
      if (share) found = { key: share.key, on: hostName(share.host, control.hosts) };
    } catch {
      // Then nothing is known of it here.
    }
    if (this.described !== disk || found?.on === this.elsewhere?.on) return;
    this.elsewhere = found;
    this.#show(disk);
  }

  async #explain() {
    try {
      const told = await ask("GET", `/v1/disks/${encodeURIComponent(this.name)}/explain?last=10s`);
      if (this.seen === false) return;
      say(this.because, sentence(told.because));
      say(this.remedy, sentence(told.remedy));
      this.notes.replaceChildren(...told.notes.map((note) => h("li", {}, sentence(note))));
      const look = { datastore: 0, turn: 1, filters: 2, queue: 3 };
      const parts = told.parts.filter((part) => part.ratio > 0.001).sort((a, b) => look[a.part] - look[b.part]);
      const named = (part) => (part.part === "turn" ? `waiting: ${REASONS[part.reason]}` : STAGES[look[part.part]].name);
      this.parts = parts.map((part) => ({ part: part.ratio, fill: STAGES[look[part.part]].fill, name: `${named(part)} ${percent(part.ratio)}` }));
      if (this.width) bar(this.partBar, this.width, 22, this.parts);
      this.partBar.classList.toggle("none", parts.length === 0);
      this.partBar.setAttribute("aria-label", parts.map((part) => `${named(part)} ${percent(part.ratio)}`).join(", ") || "no I/O");
      this.partList.replaceChildren(...parts.map((part) => h("li", {},
        s("svg", { class: "swatch", width: 22, height: 12, "aria-hidden": "true" }, s("rect", { width: 22, height: 12, rx: 2, fill: STAGES[look[part.part]].fill })),
        `${named(part)} `, h("b", {}, `${time(part.mean_us)}, ${percent(part.ratio)}`))));
    } catch {
      // Not attached, or no answer: both are said elsewhere.
    }
  }

  async #missRatios() {
    try {
      this.curve.show(await ask("GET", `/v1/disks/${encodeURIComponent(this.name)}/curve`));
    } catch {
      // Not attached, or no answer: both are said elsewhere.
    }
  }

  async #past() {
    if (!this.described?.attached) return;
    try {
      const past = await ask("GET", `/dashboard/past?disk=${encodeURIComponent(this.name)}`);
      const columns = live.hello.columns;
      const rows = past.did.map((row) => object(columns.past, row)).map((row) => ({ ...row, did: object(columns.did, row.did) }));
      const since = Math.min(this.stages.points[0]?.at ?? Infinity, this.speed.points[0]?.at ?? Infinity);
      const older = rows.filter((row) => row.at < since);
      const point = (row, v) => ({ at: row.at, from: row.at - row.covers_s * 1000, v });
      this.stages.points = older.map((row) => point(row, stages(row.did))).concat(this.stages.points);
      this.speed.points = older.map((row) => point(row, [row.did.iops, row.did.units, null, null])).concat(this.speed.points);
      this.stages.draw();
      this.speed.draw();
    } catch {
      // Then it begins now.
    }
  }

  beat({ at, disks, datastores }) {
    const disk = disks.find((one) => one.name === this.name);
    this.form.neighbours(disks, datastores);
    const comes = this.seen === false && disk;
    this.seen = Boolean(disk);
    if (comes || (this.described?.attached && !disk)) this.#describe();
    if (!disk) {
      if (this.described?.attached) {
        this.#measure(false);
        say(this.badge, "not attached");
        delete this.badge.dataset.look;
      }
      this.#chart(at, [null, null, null, null], [null, null, null, null]);
      return;
    }
    this.#measure(true);
    this.#stand(disk);
    [rate(disk.did.iops), bandwidth(disk.did.bytes), time(latency(disk)), null, null, count(disk.did.outstanding)]
      .forEach((text, nth) => text != null && say(this.tiles[nth].value, text));
    this.#chart(at, stages(disk.did), [disk.did.iops, disk.did.units, disk.limit, disk.entitled]);
  }

  /** How it stands: what has befallen its image says more than what it waits for. */
  #stand(disk) {
    const [sign, words] = CAUSES[disk.cause];
    const free = ["idle", "nothing", "guest"].includes(disk.cause);
    if (this.described?.problem) {
            say(this.badge, "⚠ its image has a problem");
      this.badge.dataset.look = "bad";
    } else if (free) {
      say(this.badge, disk.cause === "idle" ? "· idle" : `${sign} not delayed`);
      this.badge.dataset.look = "good";
    } else {
            say(this.badge, `${sign} limited by ${words}`);
      this.badge.dataset.look = ["stuck", "lease"].includes(disk.cause) || disk.unmet ? "bad" : "warn";
    }
  }

  #chart(at, stages, speed) {
    this.stages.add({ at, from: at - 1000, v: stages });
    this.speed.add({ at, from: at - 1000, v: speed });
    this.stages.draw();
    this.speed.draw();
  }

  disk({ at, name, stats, heat }) {
    if (name !== this.name) return;
    if (this.seen === false) return;
    const all = stats?.all;
    const total = all?.latency.total;
    say(this.tiles[3].value, total?.count ? time(total.p50_us) : "–");
    say(this.tiles[4].value, total?.count ? time(total.p99_us) : "–");
    say(this.tiles[6].value, all ? exactly(all.errors_total) : "–");
    this.heat.add(at, heat, total?.count ? total.p50_us : null, total?.count ? total.p99_us : null);
    this.heat.draw();
    this.ops.replaceChildren(...(stats ? [...stats.ops, ...(stats.ops.length ? [] : [all])] : []).map((op) => {
      const { total: took } = op.latency;
      const when = (us) => (took.count ? time(us) : "–");
      return h("tr", { "data-op": op.op }, h("th", { scope: "row" }, op.op),
        [count(op.iops), bandwidth(op.bytes_per_s), when(took.p50_us), when(took.p95_us), when(took.p99_us), exactly(op.ops_total)]
          .map((text) => h("td", { class: "num" }, text)));
    }));
  }
}
