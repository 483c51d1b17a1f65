// The fleet map: one button per worker. Few workers are cards with figures; many are tiles whose fill is the
// backlog and whose bar at the right is the cache, painted on a canvas behind the buttons (tiles.js). Colour never
// stands alone: the fill's height says the same, and unhealthy workers have a sign and a border of their own.
//
// Workers keep their places while the operator points at the map or moves in it with the keyboard: sorting by
// values that change every second would pull them away.
import { byId, el, say } from "./dom.js";
import { condition } from "./store.js";
import { FULL_S, Inks, SHADES_S, Tiles, fullness, shade } from "./tiles.js";
import { count, counted, percent, seconds } from "./units.js";

const CARDS_MAX = 40;
const LARGE_TILES_MAX = 300;
const RESORT_MS = 5000;

const SIGNS = { unhealthy: "✕", draining: "↓", starting: "…", ejected: "!", "on trial": "?" };
const CONDITIONS = ["healthy", "draining", "starting", "on trial", "ejected", "unhealthy"];

function described(worker) {
  const is = condition(worker);
  return (
    `${worker.id}, ${is}, backlog ${seconds(worker.backlog_s)}, ` +
    `${counted(worker.inflight, "request")} in flight, ` +
    (worker.held_percent < 0 ? "cache of unknown size" : `cache ${worker.held_percent} percent full`)
  );
}

export class FleetMap {
  constructor(store, opened) {
    this.store = store;
    this.opened = opened;
    this.map = byId("map");
    this.cells = new Map(); // key -> {button, worker, card parts}
    this.order = []; // keys as shown
    this.canvases = []; // of groups of tiles
    this.swatches = []; // of the legend
    this.only = "";
    this.current = null; // key of the cell that Tab reaches
    this.sortedMs = 0;
    this.busy = false;
    for (const [id, event] of [["filter", "input"], ["group", "change"], ["sort", "change"]]) {
      byId(id).addEventListener(event, () => this.arrange());
    }
    this.map.addEventListener("click", (event) => this.#open(event.target));
    this.map.addEventListener("keydown", (event) => this.#move(event));
    this.map.addEventListener("focusin", (event) => this.#focused(event.target));
    this.map.addEventListener("pointerenter", () => (this.busy = true));
    this.map.addEventListener("pointerleave", () => (this.busy = false));
    this.inks = new Inks(this.map, () => this.#repaint());
    new ResizeObserver(() => this.#repaint()).observe(this.map);
    this.#legend();
  }

  /** Show the changes. */
  update(changes) {
    if (changes.all || changes.members) {
      this.arrange();
      return;
    }
    for (const key of changes.loads ?? []) {
      const cell = this.cells.get(key);
      if (cell) this.#paint(cell);
    }
    this.#sum();
    const sort = byId("sort").value;
    const still = this.busy || this.map.contains(document.activeElement);
    if (sort !== "id" && !still && performance.now() - this.sortedMs > RESORT_MS) this.arrange();
  }

  /** Choose, sort and group the workers again. */
  arrange() {
    this.sortedMs = performance.now();
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const sort = byId("sort").value;
    const all = [...this.store.workers.values()];
    const group = groupable(all);
    this.#chips(all);
    const shown = all.filter(
      (worker) =>
        (!this.only || condition(worker) === this.only) && words.every((word) => worker.words.includes(word)),
    );
    shown.sort((a, b) => (sort === "id" ? 0 : b[sort] - a[sort]) || compareIds(a.id, b.id));
    const focused = this.map.contains(document.activeElement) ? this.current : null;
    this.#draw(grouped(shown, group), group, shown.length);
    this.#empty(all.length, shown.length);
    this.#sum();
    if (focused !== null) this.#focus(this.cells.has(focused) ? focused : this.order[0]);
  }

  #draw(groups, group, shown) {
    this.map.dataset.size = shown <= CARDS_MAX ? "card" : "tile";
    this.map.toggleAttribute("data-many", shown > LARGE_TILES_MAX);
    say(byId("legend-fill"), shown <= CARDS_MAX ? "Bar below" : "Fill");
    byId("legend-number").hidden = shown <= CARDS_MAX;
    const kept = this.cells;
    this.cells = new Map();
    this.order = [];
    this.canvases = [];
    const sections = groups.map(([name, workers]) => {
      const cells = workers.map((worker) => {
        const known = kept.get(worker.key);
        const size = this.map.dataset.size;
        const cell = known?.size === size && known.worker === worker ? known : this.#made(worker, size);
        this.cells.set(worker.key, cell);
        this.order.push(worker.key);
        this.#dress(cell);
        this.#paint(cell);
        return cell.button;
      });
      if (this.map.dataset.size === "tile") {
        const tiles = new Tiles(workers);
        for (const worker of workers) this.cells.get(worker.key).tiles = tiles;
        this.canvases.push(tiles);
        cells.unshift(tiles.canvas);
      }
      const title = group ? `${name || NAMELESS[group]}` : "";
      return el(
        "div",
        { class: "group" },
        title && el("h3", {}, title, el("span", { class: "quiet" }, ` ${counted(workers.length, "worker")}`)),
        el(
          "div",
          { class: "tiles", role: "group", "aria-label": title || "Workers", "aria-describedby": "map-help" },
          cells,
        ),
      );
    });
    this.map.replaceChildren(...sections);
    this.#repaint();
    if (!this.cells.has(this.current)) this.current = this.order[0] ?? null;
    this.cells.get(this.current)?.button.setAttribute("tabindex", "0");
  }

  #made(worker, size) {
    const button = el("button", { type: "button", class: "cell", tabindex: "-1" });
    button.dataset.key = worker.key;
    const cell = { button, worker, size };
    if (size === "card") {
      cell.load = el("span", { class: "figure" });
      cell.inflight = el("span", { class: "small" });
      cell.cache = el("span", { class: "small" });
      cell.is = el("span", { class: "badge" });
      button.append(
        el("span", { class: "cell-head" }, el("span", { class: "name" }, worker.id), cell.is),
        el("span", {}, cell.load, el("span", { class: "small" }, " backlog")),
        el("span", { class: "cell-foot" }, cell.inflight, cell.cache),
      );
    }
    return cell;
  }

  /** What seldom changes. */
  #dress(cell) {
    const is = condition(cell.worker);
    cell.button.dataset.is = is;
    cell.button.setAttribute("aria-label", described(cell.worker));
    if (cell.size === "card") {
      say(cell.is, is === "healthy" ? "" : `${SIGNS[is] ?? ""} ${is}`);
    } else {
      say(cell.button, SIGNS[is] ?? "");
      cell.button.title = described(cell.worker);
    }
  }

  /** What always changes. */
  #paint(cell) {
    const { worker, button } = cell;
    if (cell.size === "card") {
      button.dataset.shade = shade(worker.backlog_s);
      const fill = Math.round(fullness(worker.backlog_s) * 100);
      button.style.backgroundSize = `6px ${Math.max(worker.held_percent, 0)}%, ${fill}% 5px, 6px 100%, 100% 5px`;
      say(cell.load, seconds(worker.backlog_s));
      say(cell.inflight, `${count(worker.inflight)} in flight`);
      say(cell.cache, worker.held_percent < 0 ? "" : `cache ${worker.held_percent} %`);
    } else {
      cell.tiles?.paint(worker, this.inks);
    }
    if (button === document.activeElement) button.setAttribute("aria-label", described(worker));
  }

  #repaint() {
    for (const tiles of this.canvases) tiles.paintAll(this.inks);
    for (const tiles of this.swatches) tiles.paintAll(this.inks);
  }

  #sum() {
    const all = [...this.store.workers.values()];
    const inflight = all.reduce((sum, worker) => sum + worker.inflight, 0);
    const well = all.reduce((sum, worker) => sum + (condition(worker) === "healthy"), 0);
    say(byId("workers-sum"), all.length ? `${count(well)} of ${count(all.length)} healthy, ${counted(inflight, "request")} in flight` : "");
  }

  #empty(all, shown) {
    const empty = byId("map-empty");
    empty.hidden = shown > 0;
    if (!all) say(empty, "No worker is known yet. Add one with POST /workers, with --worker-urls, or by discovery.");
    else say(empty, "No worker fits the filter.");
    byId("legend").hidden = shown === 0;
  }

  #chips(all) {
    const counts = new Map(CONDITIONS.map((is) => [is, 0]));
    for (const worker of all) counts.set(condition(worker), (counts.get(condition(worker)) ?? 0) + 1);
    if (this.only && !counts.get(this.only)) this.only = "";
    const chips = [...counts]
      .filter(([, n]) => n > 0)
      .map(([is, n]) =>
        el(
          "button",
          {
            type: "button",
            class: "chip",
            "data-is": is,
            "aria-pressed": String(this.only === is),
            onclick: () => {
              this.only = this.only === is ? "" : is;
              this.arrange();
              byId("states").querySelector(`[data-is="${is}"]`)?.focus();
            },
          },
          el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[is] ?? "●"),
          `${is} ${count(n)}`,
        ),
      );
    const box = byId("states");
    box.hidden = chips.length < 2 && !this.only;
    const had = box.contains(document.activeElement) ? document.activeElement.dataset.is : null;
    box.replaceChildren(...chips);
    if (had) box.querySelector(`[data-is="${had}"]`)?.focus();
  }

  /** Swatches are tiles themselves, so that they look like those of the map. */
  #legend() {
    const sample = (backlogS, heldPercent) => {
      const tiles = new Tiles([{ key: 0, backlog_s: backlogS, held_percent: heldPercent }]);
      this.swatches.push(tiles);
      return el("span", { class: "swatch", "aria-hidden": "true" }, tiles.canvas);
    };
    this.swatches = [];
    const steps = SHADES_S.map((limit) => el("li", {}, sample(limit, 0), `to ${limit} s`));
    steps.push(el("li", {}, sample(FULL_S, 0), `over ${SHADES_S.at(-1)} s`));
    byId("legend").append(
      el("span", { class: "quiet", id: "legend-number" }, "Number: requests in flight"),
      el("span", { class: "quiet" }, el("span", { id: "legend-fill" }, "Fill"), ": backlog"),
      el("ul", {}, steps),
      el("span", { class: "quiet" }, "Bar at the right: cache"),
      el("ul", {}, el("li", {}, sample(0, 70), percent(0.7))),
    );
  }

  // Keys and clicks.

  #open(target) {
    const button = target.closest?.(".cell");
    const worker = button && this.store.workers.get(Number(button.dataset.key));
    if (worker) this.opened(worker.id);
  }

  #focused(target) {
    const key = Number(target.dataset?.key);
    const cell = this.cells.get(key);
    if (!cell) return;
    this.cells.get(this.current)?.button.setAttribute("tabindex", "-1");
    this.current = key;
    cell.button.setAttribute("tabindex", "0");
    cell.button.setAttribute("aria-label", described(cell.worker));
  }

  #focus(key) {
    this.cells.get(key)?.button.focus();
  }

  /** Move the focus to a worker, as after its details were closed. */
  focus(id) {
    const worker = this.store.byId.get(id);
    this.#focus(worker && this.cells.has(worker.key) ? worker.key : this.current);
  }

  #move(event) {
    const at = this.order.indexOf(this.current);
    if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    let to;
    if (event.key === "ArrowRight") to = at + 1;
    else if (event.key === "ArrowLeft") to = at - 1;
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = this.order.length - 1;
    else if (event.key === "ArrowDown") to = this.#vertical(at, 1);
    else if (event.key === "ArrowUp") to = this.#vertical(at, -1);
    else return;
    event.preventDefault();
    this.#focus(this.order[Math.min(Math.max(to, 0), this.order.length - 1)]);
  }

  /** The nearest cell of the next row, below or above, also in the next group. */
  #vertical(at, step) {
    const here = this.cells.get(this.order[at]).button.getBoundingClientRect();
    let rowTop = null;
    let best = at;
    let bestDistance = Infinity;
    for (let n = at + step; n >= 0 && n < this.order.length; n += step) {
      const there = this.cells.get(this.order[n]).button.getBoundingClientRect();
      if (there.top === here.top) continue;
      if (rowTop === null) rowTop = there.top;
      if (there.top !== rowTop) break;
      const distance = Math.abs(there.left - here.left);
      if (distance < bestDistance) [best, bestDistance] = [n, distance];
    }
    return best;
  }
}

/** What workers are grouped by. Ways that make one group of all of them are not offered. */
function groupable(workers) {
  const choice = byId("group");
  for (const option of choice.options) {
    const name = option.value;
    const kinds = new Set(workers.map((worker) => kindOf(worker, name)));
    option.hidden = option.disabled = name !== "" && name !== "state" && kinds.size < 2;
  }
  if (choice.selectedOptions[0]?.disabled) choice.value = "";
  return choice.value;
}

function kindOf(worker, group) {
  if (group === "state") return condition(worker);
  return group === "model" ? (worker.models[0] ?? "") : worker[group];
}

const NAMELESS = { bucket: "any length", role: "no role", site: "local site", state: "", model: "no model yet" };

function grouped(workers, group) {
  if (!group) return [["", workers]];
  const groups = new Map();
  for (const worker of workers) {
    const name = kindOf(worker, group);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(worker);
  }
  return [...groups].sort(([a], [b]) => compareIds(a, b));
}

const compareIds = new Intl.Collator("en", { numeric: true }).compare;
