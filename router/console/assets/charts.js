// Charts of the last ten minutes: figures of the whole fleet, a sample every few seconds. uPlot draws them (uplot.js,
// MIT, version 1.6.32, unchanged). Pointing at one shows the values of that moment below all of them.
// A gap in a line is time in which nothing was measured. Lines after the first are dashed, dotted, and both.
import { byId, el, say } from "./dom.js";
import { clock, count, percent, rate, seconds, tokens } from "./units.js";

const { uPlot } = globalThis;

const WINDOW_S = 600;
const GAP_S = 30;
const DASHES = [null, [5, 4], [2, 3], [8, 3, 2, 3]];
const INKS = ["accent", "second", "bad", "quiet"];

const CHARTS = [
  { title: "Hit rate", about: "cached share of prompt tokens, as engines report", lines: [["hit_ratio", ""]], said: percent, top: 1 },
  {
    title: "TTFT",
    about: "time to first token, P50 and P90",
    lines: [["ttft_p50_s", "P50"], ["ttft_p90_s", "P90"]],
    said: seconds,
  },
  {
    title: "TPOT",
    about: "time per output token, P50 and P90",
    lines: [["tpot_p50_s", "P50"], ["tpot_p90_s", "P90"]],
    said: seconds,
  },
  {
    title: "Output",
    about: "output tokens of ended answers, per second",
    lines: [["output_tokens_per_s", ""]],
    said: (n) => (n === null || n === undefined ? "–" : `${tokens(n)} tokens/s`),
    tick: tokens,
    least: 10,
  },
  { title: "Requests", about: "requests that ended, per second", lines: [["requests_per_s", ""]], said: rate, least: 1 },
  {
    title: "Errors",
    about: "failed or refused (4xx) by workers, 429, 503",
    lines: [["failed_per_s", "failed"], ["refused_per_s", "refused"], ["limited_per_s", "429"], ["unavailable_per_s", "503"]],
    said: rate,
    least: 1,
    none: "none",
  },
  { title: "Queue", about: "requests waiting in the gateway", lines: [["waiting", ""]], said: count, least: 4 },
  { title: "In flight", about: "requests at workers", lines: [["inflight", ""]], said: count, least: 4 },
];

/** A round number that is no smaller: 1, 2, 4 or 5 times a power of ten. Its half is as round for an axis. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 4, 5, 10]) if (value <= step * power * 1.0001) return step * power;
  return 10 * power;
}

/** Columns for uPlot: times, then a column of each line, with nulls where nothing was measured for a while. */
export function columns(samples, keys) {
  const data = [[], ...keys.map(() => [])];
  let beforeS = null;
  for (const sample of samples) {
    const atS = sample.at_unix_s;
    if (beforeS !== null && atS - beforeS > GAP_S) {
      data[0].push((beforeS + atS) / 2);
      for (const column of data.slice(1)) column.push(null);
    }
    data[0].push(atS);
    keys.forEach((key, n) => data[n + 1].push(sample[key] ?? null));
    beforeS = atS;
  }
  return data;
}

class Chart {
  constructor(spec) {
    this.spec = spec;
    this.samples = [];
    this.nowS = Date.now() / 1000;
    this.now = el("p", { class: "chart-now" }, "–");
    this.note = el("p", { class: "chart-note quiet" }, spec.about);
    this.drawing = el("div", { role: "img", class: "chart" });
    this.element = el(
      "figure",
      { class: "panel chart-panel" },
      el("figcaption", {}, el("h2", {}, spec.title), this.now),
      this.drawing,
      this.note,
    );
    new ResizeObserver(() => this.#fit()).observe(this.drawing);
  }

  show(samples, nowS) {
    this.samples = samples;
    this.nowS = nowS;
    const last = samples.at(-1);
    say(this.now, last ? this.#values((key) => last[key]) : "–");
    this.drawing.setAttribute("aria-label", this.#summary());
    this.data = columns(samples, this.spec.lines.map(([key]) => key));
    if (!this.plot) this.#fit();
    else this.#fill();
  }

  /** Draw from the beginning, as after a change of the theme. */
  redraw() {
    this.plot?.destroy();
    this.plot = null;
    this.#fit();
  }

  /** The values of one moment; with `none`, only those that are not zero. */
  #values(of) {
    const { lines, said, none } = this.spec;
    const told = none ? lines.filter(([key]) => of(key)) : lines;
    return told.map(([key, name]) => `${name ? `${name} ` : ""}${said(of(key))}`).join(" · ") || none;
  }

  #summary() {
    const { title, about, lines, said } = this.spec;
    if (!this.samples.length) return `${title}: nothing was measured yet.`;
    const told = lines.map(([key, name]) => {
      const values = this.samples.map((sample) => sample[key]).filter((value) => value !== null && value !== undefined);
      if (!values.length) return `${name} nothing was measured`;
      return `${name} now ${said(values.at(-1))}, lowest ${said(Math.min(...values))}, highest ${said(Math.max(...values))}`;
    });
    return `${title}, ${about}, last ten minutes: ${told.join("; ")}.`;
  }

  #fit() {
    const { clientWidth: width, clientHeight: height } = this.drawing;
    if (!width || !height || !this.data) return;
    if (this.plot) this.plot.setSize({ width, height });
    else {
      this.plot = new uPlot(this.#options(width, height), this.data, this.drawing);
      this.#fill();
    }
  }

  #fill() {
    this.plot.batch(() => {
      this.plot.setData(this.data, false);
      this.plot.setScale("x", { min: this.nowS - WINDOW_S, max: this.nowS });
    });
  }

  #options(width, height) {
    const { lines, said, tick = said, least = 0, top } = this.spec;
    const probe = el("span");
    this.drawing.append(probe);
    const ink = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    const highest = (plot) => Math.max(least, ...plot.data.slice(1).flat().map((value) => value ?? 0));
    const inks = { quiet: ink("quiet"), line: ink("line"), lines: INKS.map(ink) };
    probe.remove();
    const axis = { stroke: inks.quiet, font: "11px system-ui, sans-serif", ticks: { show: false } };
    return {
      width,
      height,
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "console", setSeries: false }, drag: { x: false, y: false }, y: false, points: { size: 6 } },
      scales: { y: { range: (plot) => [0, top ?? roundUp(highest(plot))] } },
      axes: [
        {
          ...axis,
          size: 20,
          gap: 3,
          grid: { show: false },
          splits: () => [this.nowS - WINDOW_S, this.nowS - WINDOW_S / 2, this.nowS],
          values: () => ["", "−5 min", "now"],
        },
        {
          ...axis,
          size: 54,
          gap: 4,
          grid: { stroke: inks.line, width: 1 },
          splits: (_plot, _axis, _low, high) => [0, high / 2, high],
          values: (_plot, splits) => splits.map((value) => tick(value)),
        },
      ],
      series: [
        {},
        ...lines.map(([, name], n) => ({
          label: name,
          stroke: inks.lines[n],
          width: 1.6,
          dash: DASHES[n] ?? undefined,
          points: { show: this.samples.length < 3, size: 5, fill: inks.lines[n] },
        })),
      ],
      hooks: { setCursor: [(plot) => this.#read(plot)] },
    };
  }

  #read(plot) {
    const at = plot.cursor.idx;
    if (at === null || at === undefined) {
      say(this.note, this.spec.about);
      return;
    }
    const values = this.#values((key) => this.data[this.spec.lines.findIndex(([each]) => each === key) + 1][at]);
    say(this.note, `${clock(this.data[0][at])}: ${values}`);
  }
}

export class Charts {
  constructor(store) {
    this.store = store;
    this.charts = CHARTS.map((spec) => new Chart(spec));
    byId("charts").replaceChildren(...this.charts.map((chart) => chart.element));
    const redraw = () => this.charts.forEach((chart) => chart.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  update(changes) {
    if (!changes.all && !changes.samples) return;
    for (const chart of this.charts) chart.show(this.store.samples, this.store.atUnixS);
  }
}
