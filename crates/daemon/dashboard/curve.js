// The miss-ratio curve of a disk: what a flash cache of each size would miss.

import { h, s, say, watchWidth } from "./draw.js";
import { bytes, count, percent, span } from "./words.js";

const HEIGHT = 190;
const LEFT = 64;
const BOTTOM = 22;
const TOP = 8;
const MIB = 1 << 20;

export class MissCurve {
  constructor() {
    this.advice = h("p", { class: "muted", "data-figure": "curve-advice" });
    this.seen = h("p", { class: "muted" });
    this.svg = s("svg", { class: "course", role: "img", height: HEIGHT, "aria-label": "Miss ratio by cache size: nothing yet" });
    this.numbers = h("tbody", {});
    this.more = h("details", { class: "numbers" },
      h("summary", {}, "As numbers"),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Miss ratio by cache size, as numbers" },
        h("table", {},
          h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "cache"), h("th", { scope: "col", class: "num" }, "misses"))),
          this.numbers)));
    this.node = h("figure", { class: "chart" },
      h("figcaption", {}, h("h2", {}, "Miss ratio by cache size")), this.svg, this.advice, this.seen, this.more);
    this.observer = watchWidth(this.node, (width) => { this.width = width; this.draw(); });
  }

  close() { this.observer.disconnect(); }

  /** What `/v1/disks/{name}/curve` answers. */
  show(curve) {
    this.curve = curve;
    say(this.advice, curve.advice.charAt(0).toUpperCase() + curve.advice.slice(1) + ".");
    say(this.seen, curve.covers_s == null ? ""
      : `${count(curve.accesses_total)} accesses in ${span(curve.covers_s)}, ${count(curve.sampled)} sampled; ${bytes(curve.touched_bytes)} in use.`);
    this.numbers.replaceChildren(...curve.points.map((point) => h("tr", {},
      h("td", {}, bytes(point.cache_bytes)), h("td", { class: "num" }, percent(point.miss_ratio)))));
    this.draw();
  }

  draw() {
    if (!this.width || !this.curve) return;
    const { points, cache_bytes: cache, trust } = this.curve;
    this.svg.setAttribute("width", this.width);
    this.more.hidden = points.length === 0;
    const right = this.width - 4;
    const floor = HEIGHT - BOTTOM;
    const first = Math.min(points[0]?.cache_bytes ?? 16 * MIB, cache ?? Infinity);
    const last = Math.max(points.at(-1)?.cache_bytes ?? 16 * MIB, cache ?? 0, first * 2);
    const octaves = Math.log2(last / first);
    const x = (size) => LEFT + (Math.log2(size / first) / octaves) * (right - LEFT);
    const y = (miss) => floor - miss * (floor - TOP);
    const drawn = [0, 0.25, 0.5, 0.75, 1].flatMap((miss) => {
      const at = Math.round(y(miss)) + 0.5;
      return [s("line", { class: "grid", x1: LEFT, x2: right, y1: at, y2: at }),
        s("text", { class: "tick", x: LEFT - 6, y: at + 4, "text-anchor": "end" }, percent(miss))];
    });
    const every = Math.max(1, Math.ceil(octaves / Math.max(1, Math.floor((right - LEFT) / 80))));
    for (let octave = Math.ceil(Math.log2(first)); octave <= Math.log2(last); octave += every) {
      drawn.push(s("text", { class: "tick", x: Math.min(right - 24, x(2 ** octave)), y: HEIGHT - 5, "text-anchor": "middle" }, bytes(2 ** octave)));
    }
    let path = "";
    points.forEach((point, nth) => {
      const [at, up] = [x(point.cache_bytes).toFixed(1), y(point.miss_ratio).toFixed(1)];
      path += nth ? `H${at}V${up}` : `M${at} ${up}`;
    });
    // A curve that has seen too little is dashed.
    if (path) drawn.push(s("path", { d: path, class: `line ${trust === "enough" ? "m-datastore" : "m-threshold"}`, "data-figure": "curve" }));
    if (cache) {
      drawn.push(s("line", { class: "line m-limit", x1: x(cache), x2: x(cache), y1: TOP, y2: floor }, s("title", {}, `today's cache: ${bytes(cache)}`)));
    }
    this.svg.replaceChildren(...drawn);
    const end = points.at(-1);
    this.svg.setAttribute("aria-label", end
      ? `Miss ratio by cache size: ${percent(points[0].miss_ratio)} at ${bytes(points[0].cache_bytes)}, ${percent(end.miss_ratio)} at ${bytes(end.cache_bytes)}`
      : "Miss ratio by cache size: nothing yet");
  }
}
