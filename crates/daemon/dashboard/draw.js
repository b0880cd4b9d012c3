// Makes elements, and draws: courses over time, shares of a whole, and heat.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; attributes with `on` are listeners, `class` and others are themselves. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

/** Sets a text only where it changes: what does not change is not read out, nor laid out again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A step that people like, such that at most `most` of them reach `top`. */
function step(top, most) {
  const raw = top / most || 1;
  const unit = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= raw);
}

/** Calls back with an element's width now and whenever it changes. */
export function watchWidth(element, use) {
  const observer = new ResizeObserver((entries) => {
    const width = Math.floor(entries[0].contentRect.width);
    if (width > 0) use(width);
  });
  observer.observe(element);
  return observer;
}

export const REACH_MS = 300000;
const HEIGHT = 190;
const LEFT = 64;
const BOTTOM = 22;
const TOP = 8;

/**
 * A course over the last five minutes.
 * `series`: name, `mark` (its class), `fill` (of a stacked one). `stack`: one on top of the other.
 * `least`: what the axis reaches at least, so that nothing is not drawn large. Points have `at`, `from` (ms) and `v`: a number for each series, or null.
 */
export class Course {
  constructor({ title, series, format, least, stack = false, band = null }) {
    Object.assign(this, { title, series, format, least, stack, band, points: [], width: 0, at: null });
    this.svg = s("svg", { class: "course", role: "img", height: HEIGHT });
    this.values = series.map(() => h("b", {}));
    this.when = h("span", { class: "muted when" });
    const legend = series.map((one, nth) => h("li", {},
      s("svg", { class: "swatch", width: 22, height: 12, "aria-hidden": "true" },
        one.fill
          ? s("rect", { width: 22, height: 12, rx: 2, fill: one.fill })
          : s("line", { x1: 0, x2: 22, y1: 6, y2: 6, class: "line " + one.mark })),
      one.name + " ", this.values[nth]));
    this.numbers = h("tbody", {});
    this.more = h("details", { class: "numbers", ontoggle: () => this.#tabulate() },
      h("summary", {}, "As numbers"),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title + ", as numbers" },
        h("table", {},
          h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "until"),
            series.map((one) => h("th", { scope: "col", class: "num" }, one.name)))),
          this.numbers)));
    this.node = h("figure", { class: "chart" },
      h("figcaption", {}, h("h2", {}, title), this.when), this.svg,
      h("ul", { class: "legend" }, legend), this.more);
    this.observer = watchWidth(this.node, (width) => { this.width = width; this.draw(); });
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
  }

  close() { this.observer.disconnect(); }

  add(point) {
    this.points.push(point);
    const oldest = point.at - REACH_MS;
    while (this.points.length > 1 && this.points[0].at < oldest) this.points.shift();
  }

  #point(event) {
    const box = this.svg.getBoundingClientRect();
    const part = (event.clientX - box.left - LEFT) / (this.width - LEFT);
    const now = this.points.at(-1)?.at ?? 0;
    this.at = now - REACH_MS + part * REACH_MS;
    this.draw();
  }

  #shown() {
    if (this.at == null) return this.points.at(-1);
    return this.points.find((point) => point.at >= this.at && point.from <= this.at) ?? null;
  }

  draw() {
    if (!this.width) return;
    const { points, series } = this;
    const now = points.at(-1)?.at ?? 0;
    const right = this.width - 4;
    const floor = HEIGHT - BOTTOM;
    const x = (at) => Math.max(LEFT, LEFT + (1 - (now - at) / REACH_MS) * (right - LEFT));
    const tall = (point) => this.stack
      ? point.v.reduce((sum, value) => sum + (value || 0), 0)
      : Math.max(0, ...point.v.map((value) => value || 0));
    // One peak must not flatten everything else: it is cut, and said to be.
    const heights = points.map(tall).sort((a, b) => a - b);
    const peak = heights.at(-1) ?? 0;
    const usual = heights[Math.floor(heights.length * 0.9)] ?? 0;
    const cut = usual > 0 && peak > usual * 6;
    const most = Math.max(this.least, cut ? usual * 2 : peak);
    const gap = step(most * 1.08, 4);
    const top = Math.ceil((most * 1.04) / gap) * gap;
    const y = (value) => Math.max(TOP - 4, floor - (value / top) * (floor - TOP));
    const drawn = [];
    for (let value = 0; value <= top * 1.001; value += gap) {
      const at = Math.round(y(value)) + 0.5;
      drawn.push(s("line", { class: "grid", x1: LEFT, x2: right, y1: at, y2: at }),
        s("text", { class: "tick", x: LEFT - 6, y: at + 4, "text-anchor": "end" }, this.format(value)));
    }
    const narrow = right - LEFT < 420;
    for (let minutes = 0; minutes <= 5; minutes += 1) {
      if (narrow && minutes % 5) continue;
      const at = x(now - minutes * 60000);
      const anchor = minutes === 0 ? "end" : minutes === 5 ? "start" : "middle";
      drawn.push(s("text", { class: "tick", x: at, y: HEIGHT - 5, "text-anchor": anchor },
        minutes === 0 ? "now" : minutes === 5 ? "5 min ago" : `${minutes}`));
    }
    if (this.band) {
      let begun = null;
      points.forEach((point, nth) => {
        if (!this.band(point)) return;
        begun ??= point.from;
        const next = points[nth + 1];
        if (next && this.band(next)) return;
        drawn.push(s("rect", { class: "band", x: x(begun), y: TOP, width: Math.max(1, x(point.at) - x(begun)), height: floor - TOP }));
        begun = null;
      });
    }
    const base = points.map(() => 0);
    series.forEach((one, nth) => {
      if (this.stack) {
        let up = "";
        let down = "";
        points.forEach((point, i) => {
          const low = base[i];
          base[i] += point.v[nth] || 0;
          up += `${up ? "L" : "M"}${x(point.from).toFixed(1)} ${y(base[i]).toFixed(1)}L${x(point.at).toFixed(1)} ${y(base[i]).toFixed(1)}`;
          down = `L${x(point.at).toFixed(1)} ${y(low).toFixed(1)}L${x(point.from).toFixed(1)} ${y(low).toFixed(1)}` + down;
        });
        if (up) drawn.push(s("path", { d: up + down + "Z", fill: one.fill, class: "area" }));
        return;
      }
      let d = "";
      let on = false;
      for (const point of points) {
        const value = point.v[nth];
        if (value == null) { on = false; continue; }
        d += `${on ? "L" : "M"}${x(point.from).toFixed(1)} ${y(value).toFixed(1)}L${x(point.at).toFixed(1)} ${y(value).toFixed(1)}`;
        on = true;
      }
      if (d) drawn.push(s("path", { d, class: "line " + one.mark }));
    });
    const shown = this.#shown();
    if (this.at != null && shown) {
      const at = x(this.at);
      drawn.push(s("line", { class: "cursor", x1: at, x2: at, y1: TOP, y2: floor }));
    }
    series.forEach((one, nth) => {
      const value = shown?.v[nth];
      say(this.values[nth], value == null ? "–" : this.format(value));
    });
    say(this.when, this.at != null && shown ? new Date(shown.at).toLocaleTimeString()
      : cut ? `▲ cut: up to ${this.format(peak)}` : "");
    this.svg.setAttribute("width", this.width);
    this.svg.replaceChildren(...drawn);
    const summary = series.map((one, nth) => `${one.name} ${shown?.v[nth] == null ? "none" : this.format(shown.v[nth])}`);
    this.svg.setAttribute("aria-label", `${this.title}: now ${summary.join(", ")}`);
    if (this.more.open) this.#tabulate();
  }

  #tabulate() {
    if (!this.more.open) return;
    const last = this.points.slice(-60).reverse();
    this.numbers.replaceChildren(...last.map((point) => h("tr", {},
      h("td", {}, new Date(point.at).toLocaleTimeString()),
      point.v.map((value) => h("td", { class: "num" }, value == null ? "–" : this.format(value))))));
  }
}

/** Parts of a whole in one bar. `parts`: `fill`, `part` (0 to 1), `name`. */
export function bar(svg, width, height, parts) {
  let x = 0;
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.replaceChildren(...parts.map(({ fill, part, name }) => {
    const wide = Math.max(0, part) * width;
    const rect = s("rect", { x, y: 0, width: wide, height, fill, class: "part" }, s("title", {}, name));
    x += wide;
    return rect;
  }));
}

/** How many I/Os took how long, over the last five minutes. Rows are half octaves of nanoseconds. */
export class Heat {
  constructor(title, format) {
    Object.assign(this, { format, columns: [], width: 0, lines: [] });
    this.canvas = h("canvas", { role: "img", class: "heat" });
    this.when = h("span", { class: "muted when" });
    this.scale = h("canvas", { class: "scale", width: 80, height: 10, "aria-hidden": "true" });
    this.node = h("figure", { class: "chart" },
      h("figcaption", {}, h("h2", {}, title), this.when), this.canvas,
      h("ul", { class: "legend" }, h("li", {}, "few", this.scale, "many I/Os of a second"),
        ["", "4 3"].map((dash, nth) => h("li", {}, s("svg", { width: 22, height: 12, "aria-hidden": "true" },
          s("line", { class: "line m-heat", x1: 0, x2: 22, y1: 6, y2: 6, "stroke-dasharray": dash || null })), ["median", "99 %"][nth]))));
    this.title = title;
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.observer = watchWidth(this.node, (width) => { this.width = width; this.draw(); });
    this.dark.addEventListener("change", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => say(this.when, ""));
  }

  close() { this.observer.disconnect(); }

  add(at, cells, p50, p99) {
    this.columns.push({ at, cells, p50, p99 });
    while (this.columns.length && this.columns[0].at < at - REACH_MS) this.columns.shift();
  }

  #colour(part) {
    // Light to dark on a light page, dark to light on a dark one: one ramp of lightness, told apart without hue.
    const ramp = this.dark.matches
      ? [[24, 44, 62], [30, 96, 130], [86, 160, 170], [214, 205, 120], [255, 240, 190]]
      : [[222, 234, 243], [150, 196, 222], [66, 140, 186], [18, 84, 138], [6, 32, 74]];
    const place = Math.min(0.9999, Math.max(0, part)) * (ramp.length - 1);
    const low = Math.floor(place);
    const mixed = ramp[low].map((from, i) => Math.round(from + (ramp[low + 1][i] - from) * (place - low)));
    return `rgb(${mixed.join(" ")})`;
  }

  #range() {
    let low = Infinity;
    let high = -Infinity;
    for (const column of this.columns) {
      for (const [row] of column.cells) { low = Math.min(low, row); high = Math.max(high, row); }
    }
    if (low > high) { low = 28; high = 44; }
    const room = Math.max(0, 10 - (high - low));
    return [low - 1 - Math.floor(room / 2), high + 1 + Math.ceil(room / 2)];
  }

  static edge(row) { return 2 ** Math.floor(row / 2) * (row % 2 ? 1.5 : 1); }

  static place(ns) {
    const octave = Math.floor(Math.log2(ns));
    return octave * 2 + (ns / 2 ** octave < 1.5 ? (ns / 2 ** octave - 1) * 2 : 1 + (ns / 2 ** octave - 1.5) * 2);
  }

  draw() {
    if (!this.width) return;
    const ratio = devicePixelRatio || 1;
    const { canvas, columns, width } = this;
    canvas.width = width * ratio;
    canvas.height = HEIGHT * ratio;
    canvas.style.width = width + "px";
    canvas.style.height = HEIGHT + "px";
    const paint = canvas.getContext("2d");
    paint.scale(ratio, ratio);
    const style = getComputedStyle(this.node);
    const [low, high] = this.#range();
    const floor = HEIGHT - BOTTOM;
    const tall = (floor - TOP) / (high - low);
    const y = (place) => floor - (place - low) * tall;
    const now = columns.at(-1)?.at ?? 0;
    const x = (at) => LEFT + (1 - (now - at) / REACH_MS) * (width - 4 - LEFT);
    this.map = { low, tall, floor, now };
    paint.fillStyle = style.getPropertyValue("--well");
    paint.fillRect(LEFT, TOP, width - 4 - LEFT, floor - TOP);
    const wide = ((width - 4 - LEFT) * 1000) / REACH_MS;
    for (const column of columns) {
      const all = column.cells.reduce((sum, [, many]) => sum + many, 0);
      for (const [row, many] of column.cells) {
        paint.fillStyle = this.#colour(0.12 + 0.88 * (Math.log10(1 + 99 * (many / all)) / 2));
        paint.fillRect(x(column.at) - wide, y(row + 1), wide + 0.6, tall + 0.4);
      }
    }
    for (const [line, dash] of [["p50", []], ["p99", [4, 3]]]) {
      paint.beginPath();
      for (const column of columns) {
        if (!column[line]) continue;
        const at = y(Heat.place(column[line] * 1000));
        paint.moveTo(x(column.at) - wide, at);
        paint.lineTo(x(column.at), at);
      }
      paint.setLineDash(dash);
      paint.lineWidth = 2;
      paint.strokeStyle = style.getPropertyValue("--line-on-heat");
      paint.stroke();
    }
    paint.setLineDash([]);
    paint.fillStyle = style.getPropertyValue("--muted");
    paint.font = "12px system-ui, sans-serif";
    paint.textAlign = "right";
    const every = Math.max(2, 2 * Math.ceil((high - low) / 2 / 6));
    for (let row = Math.ceil(low / 2) * 2; row <= high; row += every) {
      paint.fillText(this.format(Heat.edge(row) / 1000), LEFT - 6, Math.max(TOP + 8, y(row) + 4));
    }
    paint.textAlign = "left";
    paint.fillText("5 min ago", LEFT, HEIGHT - 6);
    paint.textAlign = "right";
    paint.fillText("now", width - 4, HEIGHT - 6);
    const scale = this.scale.getContext("2d");
    for (let at = 0; at < 80; at += 1) {
      scale.fillStyle = this.#colour(0.12 + (0.88 * at) / 80);
      scale.fillRect(at, 0, 1, 10);
    }
    const last = columns.at(-1);
    canvas.setAttribute("aria-label", last && last.p50
      ? `${this.title}: in the last second half took no longer than ${this.format(last.p50)}, 99 % no longer than ${this.format(last.p99)}`
      : `${this.title}: no I/O in the last second`);
  }

  #point(event) {
    if (!this.map) return;
    const box = this.canvas.getBoundingClientRect();
    const { low, tall, floor, now } = this.map;
    const row = Math.floor(low + (floor - (event.clientY - box.top)) / tall);
    const at = now - (1 - (event.clientX - box.left - LEFT) / (this.width - 4 - LEFT)) * REACH_MS;
    const column = this.columns.find((one) => one.at >= at && one.at - 1100 < at);
    const cell = column?.cells.find(([place]) => place === row);
    say(this.when, column
      ? `${new Date(column.at).toLocaleTimeString()}, ${this.format(Heat.edge(row) / 1000)} to ${this.format(Heat.edge(row + 1) / 1000)}: ${cell ? cell[1] : 0} I/Os`
      : "");
  }
}
