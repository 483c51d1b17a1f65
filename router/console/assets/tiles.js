// Painting tiles: a canvas behind each group of buttons. Changing the style of a thousand buttons every second
// takes a browser ten times as long as painting a thousand small rectangles.

import { condition } from "./store.js";

/** Backlog in seconds up to which a tile has each shade; beyond the last it has the one that warns. */
export const SHADES_S = [0.25, 1, 3, 8];

/** Backlog at which a tile is full. */
export const FULL_S = 16;

const CACHE_PX = 4;
const ROUND_PX = 3;
const NUMBER_PX = 20; // smallest tile with a number

/** Number of the shade of a backlog. */
export function shade(backlogS) {
  const n = SHADES_S.findIndex((limit) => backlogS <= limit);
  return n < 0 ? SHADES_S.length : n;
}

/** Share of a tile that is filled: by the square root, since one second matters more beside none than beside ten. */
export function fullness(backlogS) {
  return Math.min(Math.sqrt(Math.max(backlogS, 0) / FULL_S), 1);
}

/** The colours of the style sheet, read again when the theme changes. */
export class Inks {
  constructor(host, changed) {
    this.host = host;
    const reread = () => {
      this.known = null;
      changed();
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", reread);
    new MutationObserver(reread).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  get all() {
    if (!this.known) {
      const probe = document.createElement("span");
      this.host.append(probe);
      const ink = (name) => {
        probe.style.color = `var(--${name})`;
        return getComputedStyle(probe).color;
      };
      const shades = [...SHADES_S, 0].map((_, n) => ink(`shade-${n}`));
      this.known = { shades, track: ink("track"), cache: ink("cache"), text: ink("text"), over: ink("panel") };
      probe.remove();
    }
    return this.known;
  }
}

/** One group of tiles, in the order of its buttons. */
export class Tiles {
  constructor(workers) {
    this.workers = workers;
    this.numbers = new Map(workers.map((worker, n) => [worker.key, n]));
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.pen = null;
  }

  /** Measure where the buttons are, and paint all of them. */
  paintAll(inks) {
    const box = this.canvas.parentElement;
    if (!box?.clientWidth) return;
    const style = getComputedStyle(box);
    const tracks = style.gridTemplateColumns.split(" ").map(parseFloat);
    this.tile = tracks[0] || box.clientWidth;
    this.pitch = this.tile + (parseFloat(style.columnGap) || 0);
    this.columns = style.display === "grid" ? tracks.length : 1;
    const rows = Math.ceil(this.workers.length / this.columns);
    const width = this.columns * this.pitch;
    const height = rows * this.pitch;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.ceil(width * scale);
    this.canvas.height = Math.ceil(height * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.pen = this.canvas.getContext("2d");
    this.pen.scale(scale, scale);
    for (const worker of this.workers) this.paint(worker, inks);
  }

  /** Paint one again. */
  paint(worker, inks) {
    const { pen, tile, pitch } = this;
    const n = this.numbers.get(worker.key);
    if (!pen || n === undefined) return;
    const { shades, track, cache, text, over } = inks.all;
    const x = (n % this.columns) * pitch;
    const y = Math.floor(n / this.columns) * pitch;
    const wide = tile - CACHE_PX - 1;
    const fill = Math.round(fullness(worker.backlog_s) * tile);
    const held = Math.round((Math.max(worker.held_percent, 0) / 100) * tile);
    pen.clearRect(x, y, tile, tile);
    pen.fillStyle = track;
    pen.beginPath();
    pen.roundRect(x, y, wide, tile, [ROUND_PX, 0, 0, ROUND_PX]);
    pen.roundRect(x + wide + 1, y, CACHE_PX, tile, [0, ROUND_PX, ROUND_PX, 0]);
    pen.fill();
    pen.fillStyle = shades[shade(worker.backlog_s)];
    pen.fillRect(x, y + tile - fill, wide, fill);
    pen.fillStyle = cache;
    pen.fillRect(x + wide + 1, y + tile - held, CACHE_PX, held);
    if (tile < NUMBER_PX || worker.inflight === undefined || condition(worker) !== "healthy") return;
    // With an outline in the panel's colour the number is legible on any fill.
    pen.font = `600 ${tile > 30 ? 11 : 9}px system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.lineWidth = 2.5;
    pen.lineJoin = "round";
    pen.strokeStyle = over;
    pen.fillStyle = text;
    const number = worker.inflight > 999 ? "1k" : String(worker.inflight);
    pen.globalAlpha = worker.inflight ? 1 : 0.45;
    pen.strokeText(number, x + wide / 2, y + tile / 2);
    pen.fillText(number, x + wide / 2, y + tile / 2);
    pen.globalAlpha = 1;
  }
}
