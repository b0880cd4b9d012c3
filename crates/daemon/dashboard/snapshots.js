// The snapshots of a disk as a tree, with what the disk has now in it.

import { ask } from "./live.js";
import { h } from "./draw.js";
import { bytes, count } from "./words.js";

export class SnapshotTree {
  constructor(disk) {
    this.disk = disk;
    this.list = h("ul", { class: "members", "data-figure": "snapshots" });
    this.node = h("section", { class: "card", "aria-labelledby": "h-snapshots", hidden: true }, h("h2", { id: "h-snapshots" }, "Snapshots"), this.list);
  }

  /** Asks for them. A disk that cannot have any shows nothing. */
  async ask() {
    try {
      this.show(await ask("GET", `/v1/disks/${encodeURIComponent(this.disk)}/snapshots`));
    } catch {
      this.node.hidden = true;
    }
  }

  /** What `/v1/disks/{name}/snapshots` answers: a parent comes before its children. */
  show({ snapshots, latest }) {
    this.node.hidden = snapshots.length === 0;
    const children = (name) => snapshots.filter((one) => one.parent === name).length + (latest === name ? 1 : 0);
    const roots = h("ul", { class: "members" });
    const below = new Map();
    const place = (parent) => below.get(parent) || roots;
    for (const one of snapshots) {
      // An only child is in the list of its parent, so that a line of snapshots stays a list.
      const list = children(one.name) > 1 ? h("ul", { class: "members" }) : null;
      place(one.parent).append(h("li", {}, line(one), ...(list ? [list] : [])));
      below.set(one.name, list || place(one.parent));
    }
    place(latest).append(h("li", { class: "muted" }, "now"));
    this.list.replaceChildren(...roots.childNodes);
  }
}

function line(one) {
  const facts = [new Date(one.taken_at_s * 1000).toLocaleString()];
  if (one.own_bytes != null) facts.push(`${bytes(one.own_bytes)} of its own`);
  const clones = one.clones || [];
  if (clones.length) facts.push(`${count(clones.length)} ${clones.length === 1 ? "clone" : "clones"}: ${clones.slice(0, 5).join(", ")}${clones.length > 5 ? ", …" : ""}`);
  return `${one.name} (${facts.join("; ")})`;
}
