// The caches page: the flash caches of this host, how much each disk has of them, and what they may still write.

import { ask } from "./live.js";
import { h, say } from "./draw.js";
import { diskHref, tile } from "./host.js";
import { List } from "./table.js";
import { bytes, count, percent, span } from "./words.js";

/** The caches are asked for anew after so long. */
const RENEW_MS = 2000;

const ratio = (at) => (at && at.hits_total + at.misses_total > 0 ? at.hits_total / (at.hits_total + at.misses_total) : null);
const hits = (part) => (part == null ? "–" : percent(part));

export class CachesPage {
  constructor(main) {
    this.cards = new Map();
    this.lead = h("p", { class: "muted" }, "Hit ratios are since each disk was attached. On the command line: tidegate cache show NAME.");
    this.none = h("p", { class: "card" }, "This host has no flash cache. tidegate cache create NAME --device PATH --mirror PATH");
    this.none.hidden = true;
    this.box = h("div", {});
    main.append(h("h1", {}, "Flash caches"), this.lead, this.none, this.box);
    this.#learn();
    this.asking = setInterval(() => this.#learn(), RENEW_MS);
  }

  close() { clearInterval(this.asking); }

  press(key) { return [...this.cards.values()].some((card) => card.list.press(key)); }

  async #learn() {
    try {
      this.#show((await ask("GET", "/v1/caches")).caches);
    } catch {
      // The banner says that the daemon does not answer.
    }
  }

  #show(caches) {
    this.none.hidden = caches.length > 0;
    for (const [name, card] of this.cards) {
      if (!caches.some((cache) => cache.name === name)) { card.node.remove(); this.cards.delete(name); }
    }
    for (const cache of caches) {
      const card = this.cards.get(cache.name) || this.#card(cache.name);
      this.#fill(card, cache);
    }
  }

  #card(name) {
    const id = `h-cache-${this.cards.size}`;
    const number = (name, by, text, wide) => ({ name, by, text: (disk) => text(by(disk)), num: true, wide });
    const card = {
      badge: h("span", { class: "badge" }), devices: h("p", { class: "muted" }),
      tiles: [tile("size", "size"), tile("used by disks", "used"), tile("page reads that hit", "hits"), tile("only on flash", "dirty"), tile("the oldest of it", "age"),
        tile("written to flash", "written"), tile("write budget a day", "budget"), tile("left of it", "left"),
        tile("blocks read that were not as written", "corrupt")],
      list: new List({
        label: `Disks of cache ${name}`, key: (disk) => disk.disk, href: (disk) => diskHref(disk.disk), sorted: "part", empty: "No disk has a part of it. tidegate disk set DISK --cache NAME",
        columns: [
          { name: "disk", text: (disk) => disk.disk },
          number("part", (disk) => disk.size_bytes, bytes),
          { name: "mode", text: mode },
          number("hits", (disk) => ratio(disk.at_work), hits),
          number("only on flash", (disk) => disk.at_work?.dirty_bytes, bytes),
          number("the oldest", (disk) => disk.at_work?.dirty_age_s, (seconds) => (seconds == null ? "–" : span(seconds)), true),
          number("devices", (disk) => disk.at_work?.devices, (devices) => (devices == null ? "–" : count(devices)), true),
          number("written", (disk) => disk.at_work?.flash_written_bytes_total, bytes, true),
        ],
      }),
    };
    card.node = h("section", { "aria-labelledby": id, class: "card", "data-cache": name },
      h("div", { class: "title" }, h("h2", { id }, name), card.badge), card.devices,
      h("dl", { class: "tiles" }, card.tiles.map((one) => one.node)), card.list.node);
    this.cards.set(name, card);
    this.box.append(card.node);
    return card;
  }

  #fill(card, cache) {
    const look = cache.problem ? "bad" : cache.budget_is_spent ? "warn" : "good";
    card.badge.dataset.look = look;
    say(card.badge, { bad: cache.unreadable_pages > 0 ? `⚠ pages unreadable: ${count(cache.unreadable_pages)}` : "⚠ problem", warn: "⚠ write budget used up: nothing enters it", good: "in order" }[look]);
    say(card.devices, cache.devices.map((device) => `${device.device}: ${device.path}${state(device)}`).join(", ")
      || (cache.problem ? cache.problem.what : ""));
    const at = cache.disks.map((disk) => disk.at_work).filter(Boolean);
    const sum = (of) => at.reduce((all, one) => all + one[of], 0);
    [bytes(cache.size_bytes), bytes(cache.size_bytes - cache.free_bytes), hits(ratio({ hits_total: sum("hits_total"), misses_total: sum("misses_total") })),
      bytes(cache.dirty_bytes), cache.dirty_age_s == null ? "–" : span(cache.dirty_age_s),
      bytes(cache.flash_written_bytes_total), cache.budget_bytes_per_day == null ? "none" : bytes(cache.budget_bytes_per_day), bytes(cache.budget_left_bytes),
      count(cache.corrupt_blocks_total),
    ].forEach((text, nth) => say(card.tiles[nth].value, text));
    card.list.update(cache.disks);
  }
}

function state({ problem, behind_disks: behind }) {
  if (problem) return ` (${problem.what})`;
  return behind > 0 ? ` (not complete for ${behind} ${behind === 1 ? "disk" : "disks"})` : "";
}

function mode({ at_work: at, mode }) {
  if (!at) return mode === "off" ? "off" : "not in use";
  if (!at.in_use) return "⚠ failed";
  return at.mode;
}
