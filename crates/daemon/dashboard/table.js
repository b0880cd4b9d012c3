// A list that can be sorted, searched and walked through by j and k.

import { h, say } from "./draw.js";

export class List {
  /** `columns`: name, `text(row)`, `by(row)` to sort, `num`, `wide` (left out on a telephone), `sign(row)`. */
  constructor({ label, columns, key, href, sorted, down = true, empty }) {
    Object.assign(this, { columns, key, href, sorted, down, empty, rows: [], lines: new Map(), search: "", chosen: null });
    this.input = h("input", { type: "search", "aria-label": `Search ${label}`, placeholder: "Search  /", oninput: () => {
      this.search = this.input.value.trim().toLowerCase();
      this.draw();
    } });
    this.tally = h("span", { class: "muted", "aria-live": "polite" });
    this.heads = columns.map((column) => h("th", { scope: "col", class: this.#class(column) },
      h("button", { type: "button", onclick: () => this.#sort(column) }, column.name, h("span", { class: "arrow", "aria-hidden": "true" }))));
    this.body = h("tbody", {});
    this.node = h("div", {},
      h("div", { class: "bar" }, this.input, this.tally),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, the list` },
        h("table", { class: "list" }, h("thead", {}, h("tr", {}, this.heads)), this.body)));
  }

  #class(column) {
    return [column.num && "num", column.wide && "wide"].filter(Boolean).join(" ") || null;
  }

  #sort(column) {
    this.down = this.sorted === column.name ? !this.down : Boolean(column.num);
    this.sorted = column.name;
    this.draw();
  }

  update(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const column = this.columns.find((one) => one.name === this.sorted);
    const by = column.by || column.text;
    const found = this.rows.filter((row) => !this.search
      || this.columns.some((one) => one.text(row).toLowerCase().includes(this.search)));
    found.sort((a, b) => {
      const [x, y] = [by(a), by(b)];
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return (this.down ? -order : order) || String(this.key(a)).localeCompare(String(this.key(b)));
    });
    this.columns.forEach((one, nth) => {
      const mine = one.name === this.sorted;
      this.heads[nth].setAttribute("aria-sort", mine ? (this.down ? "descending" : "ascending") : "none");
      say(this.heads[nth].querySelector(".arrow"), mine ? (this.down ? " ↓" : " ↑") : "");
    });
    const lines = new Map();
    for (const row of found) {
      const key = this.key(row);
      const line = this.lines.get(key) || this.#line(row);
      this.columns.forEach((one, nth) => {
        say(line.cells[nth], one.text(row));
        if (one.sign) line.tr.dataset.sign = one.sign(row);
      });
      line.tr.classList.toggle("chosen", key === this.chosen);
      lines.set(key, line);
    }
    this.lines = lines;
    const wanted = [...lines.values()].map((line) => line.tr);
    if (wanted.length === 0) wanted.push(this.#nothing());
    const there = [...this.body.children];
    if (there.length !== wanted.length || there.some((tr, nth) => tr !== wanted[nth])) {
      const focused = document.activeElement;
      this.body.replaceChildren(...wanted);
      // A link that was under the keyboard stays so when its row moves.
      if (focused && focused !== document.activeElement && this.body.contains(focused)) focused.focus({ preventScroll: true });
    }
    say(this.tally, this.search ? `${found.length} of ${this.rows.length}` : `${this.rows.length} in all`);
  }

  #nothing() {
    return h("tr", {}, h("td", { colspan: this.columns.length, class: "muted" }, this.search ? "No match." : this.empty));
  }

  #line(row) {
    const cells = [];
    const tr = h("tr", {}, this.columns.map((column, nth) => {
      const cell = nth === 0 && this.href ? h("a", { href: this.href(row) }) : h("span", {});
      cells.push(cell);
      return h(nth === 0 ? "th" : "td", { class: this.#class(column), scope: nth === 0 ? "row" : null }, cell);
    }));
    return { tr, cells };
  }

  /** A key of the keyboard; answers whether it was meant for the list. */
  press(key) {
    if (key === "/") {
      this.input.focus();
      return true;
    }
    if (key !== "j" && key !== "k") return false;
    const keys = [...this.lines.keys()];
    if (keys.length === 0) return true;
    const at = keys.indexOf(this.chosen);
    const next = at < 0 ? 0 : Math.min(keys.length - 1, Math.max(0, at + (key === "j" ? 1 : -1)));
    this.chosen = keys[next];
    for (const [name, line] of this.lines) line.tr.classList.toggle("chosen", name === this.chosen);
    const { tr, cells } = this.lines.get(this.chosen);
    tr.scrollIntoView({ block: "nearest" });
    if (this.href) cells[0].focus({ preventScroll: true });
    return true;
  }
}
