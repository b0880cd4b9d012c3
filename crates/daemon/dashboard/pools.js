// The pools page: the pools of this host, how full they are, their groups and members, and which disk has how much.

import { ask } from "./live.js";
import { h, say } from "./draw.js";
import { diskHref, tile } from "./host.js";
import { List } from "./table.js";
import { bytes, count, percent } from "./words.js";

/** The pools are asked for anew after so long. */
const RENEW_MS = 2000;

const part = (some, all) => (all > 0 ? percent(some / all) : "–");

export class PoolsPage {
  constructor(main) {
    this.cards = new Map();
    this.lead = h("p", { class: "muted" }, "Disks take space of a pool when it is first written to. On the command line: tidegate pool show NAME.");
    this.none = h("p", { class: "card" }, "This host has no pool. tidegate pool create NAME --group stripe:PATH,PATH");
    this.none.hidden = true;
    this.box = h("div", {});
    main.append(h("h1", {}, "Pools"), this.lead, this.none, this.box);
    this.#learn();
    this.asking = setInterval(() => this.#learn(), RENEW_MS);
  }

  close() { clearInterval(this.asking); }

  press(key) { return [...this.cards.values()].some((card) => card.disks.press(key)); }

  async #learn() {
    try {
      this.#show((await ask("GET", "/v1/pools")).pools);
    } catch {
      // The banner says that the daemon does not answer.
    }
  }

  #show(pools) {
    this.none.hidden = pools.length > 0;
    for (const [name, card] of this.cards) {
      if (!pools.some((pool) => pool.name === name)) { card.node.remove(); this.cards.delete(name); }
    }
    for (const pool of pools) this.#fill(this.cards.get(pool.name) || this.#card(pool.name), pool);
  }

  #card(name) {
    const id = `h-pool-${this.cards.size}`;
    const number = (name, by, text, wide) => ({ name, by, text: (row) => text(by(row)), num: true, wide });
    const card = {
      badge: h("span", { class: "badge" }), why: h("p", { class: "muted" }),
      tiles: [tile("size", "size"), tile("used by disks", "used"), tile("of it", "part"), tile("reserved by thick disks", "reserved"),
        tile("left for thin disks", "available"), tile("disks", "disks")],
      groups: new List({
        label: `Groups of pool ${name}`, key: (group) => String(group.group), sorted: "group", empty: "The pool cannot be used",
        columns: [
          number("group", (group) => group.group, count),
          { name: "layout", text: (group) => group.layout },
          { name: "tier", text: (group) => group.tier },
          number("size", (group) => group.size_bytes, bytes),
          number("used", (group) => group.used_bytes, bytes),
          { name: "members", text: members, wide: true },
        ],
      }),
      disks: new List({
        label: `Disks of pool ${name}`, key: (of) => of.disk, href: (of) => diskHref(of.disk), sorted: "used", empty: `No disk is on it. tidegate disk create DISK --datastore ${name} --size SIZE`,
        columns: [
          { name: "disk", text: (of) => of.disk },
          number("used", (of) => of.granted_bytes, bytes),
          number("reserved", (of) => of.reserved_bytes, bytes),
        ],
      }),
    };
    card.node = h("section", { "aria-labelledby": id, class: "card", "data-pool": name },
      h("div", { class: "title" }, h("h2", { id }, name), card.badge), card.why,
      h("dl", { class: "tiles" }, card.tiles.map((one) => one.node)), card.groups.node, card.disks.node);
    this.cards.set(name, card);
    this.box.append(card.node);
    return card;
  }

  #fill(card, pool) {
    const hurt = pool.groups.flatMap((group) => group.members).some((member) => !member.is_current);
    const look = pool.problem || pool.level === "critical" ? "bad" : hurt || pool.level !== "ample" ? "warn" : "good";
    card.badge.dataset.look = look;
    say(card.badge, pool.problem ? "⚠ problem" : hurt ? "⚠ a member is lost" : pool.level === "ample" ? "in order" : `⚠ ${pool.level}`);
    say(card.why, pool.problem ? pool.problem.what : pool.level === "ample" ? "" : `add a group: tidegate pool add-group ${pool.name} PATH; or delete disks`);
    [bytes(pool.size_bytes), bytes(pool.used_bytes), part(pool.used_bytes, pool.size_bytes), bytes(pool.reserved_bytes), bytes(pool.available_bytes), count(pool.disks)]
      .forEach((text, nth) => say(card.tiles[nth].value, text));
    card.groups.update(pool.groups);
    card.disks.update(pool.by_disk || []);
  }
}

function members(group) {
  const state = (member) => (member.is_current ? "" : ` (${member.trouble || "behind"})`);
  return group.members.map((member) => `${member.member}: ${member.path || "–"}${state(member)}`).join(", ");
}
