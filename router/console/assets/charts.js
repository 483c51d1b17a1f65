// Four charts of the last ten minutes, drawn by hand: figures of the whole fleet, a sample every few seconds.
// A gap in a line is time in which nothing was measured. The second line of a chart is dashed.
import { byId, el, say, svg } from "./dom.js";
import { clock, count, percent, rate, seconds } from "./units.js";

const WINDOW_S = 600;
const MARGIN = { left: 52, right: 10, top: 8, bottom: 18 };

const CHARTS = [
  {
    title: "Hit rate",
    about: "cached share of prompt tokens",
    lines: [["hit_ratio", ""]],
    said: percent,
    top: () => 1,
    ticks: [0, 0.5, 1],
  },
  {
    title: "TTFT",
    about: "time to first token, P50 and P90",
    lines: [
      ["ttft_p50_s", "P50"],
      ["ttft_p90_s", "P90"],
    ],
    said: seconds,
  },
  {
    title: "Queue",
    about: "requests waiting in the gateway",
    lines: [["waiting", ""]],
    said: count,
    least: 4,
  },
  {
    title: "Requests",
    about: "requests that ended, per second",
    lines: [["requests_per_s", ""]],
    said: rate,
    least: 1,
  },
];

/** A round number that is no smaller: 1, 2 or 5 times a power of ten. Its half is as round for an axis. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 4, 5, 10]) if (value <= step * power * 1.0001) return step * power;
  return 10 * power;
}

class Chart {
  constructor(spec) {
    this.spec = spec;
    this.samples = [];
    this.nowS = 0;
    this.now = el("p", { class: "chart-now" }, "–");
    this.note = el("p", { class: "chart-note quiet" }, spec.about);
    this.drawing = svg("svg", { role: "img", class: "chart" });
    this.element = el(
      "figure",
      { class: "panel chart-panel" },
      el("figcaption", {}, el("h2", {}, spec.title), this.now),
      this.drawing,
      this.note,
    );
    this.drawing.addEventListener("pointermove", (event) => this.#read(event));
    this.drawing.addEventListener("pointerleave", () => this.#unread());
    new ResizeObserver(() => this.draw()).observe(this.drawing);
  }

  show(samples, nowS) {
    this.samples = samples;
    this.nowS = nowS;
    const last = samples.at(-1);
    say(this.now, last ? this.#values(last) : "–");
    this.drawing.setAttribute("aria-label", this.#summary());
    this.draw();
  }

  #values(sample) {
    return this.spec.lines
      .map(([key, name]) => `${name ? `${name} ` : ""}${this.spec.said(sample[key])}`)
      .join(" · ");
  }

  #summary() {
    const { title, about, lines, said } = this.spec;
    if (!this.samples.length) return `${title}: nothing was measured yet.`;
    const told = lines.map(([key, name]) => {
      const values = this.samples.map((sample) => sample[key]).filter((value) => value !== null);
      if (!values.length) return `${name} nothing was measured`;
      return `${name} now ${said(values.at(-1))}, lowest ${said(Math.min(...values))}, highest ${said(Math.max(...values))}`;
    });
    return `${title}, ${about}, last ten minutes: ${told.join("; ")}.`;
  }

  draw() {
    const { width, height } = this.drawing.getBoundingClientRect();
    if (!width || !height) return;
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const { spec, samples } = this;
    const values = samples.flatMap((sample) => spec.lines.map(([key]) => sample[key] ?? 0));
    const top = spec.top?.() ?? roundUp(Math.max(spec.least ?? 0, ...values));
    const right = width - MARGIN.right;
    const bottom = height - MARGIN.bottom;
    this.x = (atS) => right - ((this.nowS - atS) / WINDOW_S) * (right - MARGIN.left);
    this.y = (value) => bottom - (value / top) * (bottom - MARGIN.top);
    const parts = [];
    for (const tick of spec.ticks ?? [0, top / 2, top]) {
      const y = this.y(tick);
      parts.push(
        svg("line", { class: tick ? "grid" : "axis", x1: MARGIN.left, x2: right, y1: y, y2: y }),
        svg("text", { class: "tick", x: MARGIN.left - 6, y: y + 3.5, "text-anchor": "end" }, spec.said(tick)),
      );
    }
    for (const [minutes, anchor] of [[10, "start"], [5, "middle"], [0, "end"]]) {
      const x = right - (minutes / 10) * (right - MARGIN.left);
      parts.push(
        svg("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 3 }),
        svg("text", { class: "tick", x, y: height - 3, "text-anchor": anchor }, minutes ? `−${minutes} min` : "now"),
      );
    }
    spec.lines.forEach(([key], n) => parts.push(...this.#line(key, n)));
    if (!samples.length) {
      parts.push(svg("text", { class: "tick", x: (MARGIN.left + right) / 2, y: (MARGIN.top + bottom) / 2, "text-anchor": "middle" }, "nothing measured yet"));
    }
    this.cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
    this.drawing.replaceChildren(...parts, this.cursor);
  }

  /** One line, in as many pieces as there are gaps, and a dot at its end. */
  #line(key, n) {
    let d = "";
    let last = null;
    let beforeS = null;
    for (const sample of this.samples) {
      const value = sample[key];
      if (value === null || this.nowS - sample.at_unix_s > WINDOW_S) {
        beforeS = null;
        continue;
      }
      const point = `${this.x(sample.at_unix_s).toFixed(1)} ${this.y(value).toFixed(1)}`;
      const joined = beforeS !== null && sample.at_unix_s - beforeS < 30;
      d += joined ? `L${point}` : `M${point}h0.1`;
      beforeS = sample.at_unix_s;
      last = sample;
    }
    if (!last) return [];
    return [
      svg("path", { class: `line line-${n}`, d }),
      svg("circle", { class: `dot dot-${n}`, r: 2.5, cx: this.x(last.at_unix_s), cy: this.y(last[key]) }),
    ];
  }

  #read(event) {
    if (!this.samples.length || !this.x) return;
    const at = event.clientX - this.drawing.getBoundingClientRect().left;
    let nearest = this.samples[0];
    for (const sample of this.samples) {
      if (Math.abs(this.x(sample.at_unix_s) - at) < Math.abs(this.x(nearest.at_unix_s) - at)) nearest = sample;
    }
    const x = this.x(nearest.at_unix_s);
    if (x < MARGIN.left) return;
    for (const [name, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) this.cursor.setAttribute(name, value);
    say(this.note, `${clock(nearest.at_unix_s)}: ${this.#values(nearest)}`);
  }

  #unread() {
    this.cursor?.setAttribute("visibility", "hidden");
    say(this.note, this.spec.about);
  }
}

export class Charts {
  constructor(store) {
    this.store = store;
    this.charts = CHARTS.map((spec) => new Chart(spec));
    byId("charts").replaceChildren(...this.charts.map((chart) => chart.element));
  }

  update(changes) {
    if (!changes.all && !changes.samples) return;
    for (const chart of this.charts) chart.show(this.store.samples, this.store.atUnixS);
  }
}
