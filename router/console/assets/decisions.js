// Decisions as they come, the newest first. The list stands still while the operator reads it: when it is paused,
// pointed at or focused.
import { byId, el, say } from "./dom.js";
import { clock, count, seconds, tokens } from "./units.js";
import { spaced } from "./words.js";

const SHOWN_MAX = 60;

export class Decisions {
  constructor(store, opened) {
    this.store = store;
    this.opened = opened;
    this.list = byId("decisions");
    this.paused = false;
    this.read = false;
    const pause = byId("pause");
    pause.addEventListener("click", () => {
      this.paused = !this.paused;
      pause.setAttribute("aria-pressed", String(this.paused));
      say(pause, this.paused ? "Go on" : "Pause");
      this.#draw();
    });
    this.list.addEventListener("pointerenter", () => (this.read = true));
    this.list.addEventListener("pointerleave", () => this.#released());
    this.list.addEventListener("focusout", () => this.#released());
    this.list.addEventListener("click", (event) => {
      const button = event.target.closest?.("button");
      if (button) this.opened(this.shown[Number(button.dataset.n)], button);
    });
  }

  update(changes) {
    if (changes.all || changes.decisions) this.#draw();
  }

  #released() {
    this.read = false;
    this.#draw();
  }

  #draw() {
    const still = this.paused || this.read || this.list.contains(document.activeElement);
    say(byId("decisions-sum"), `${count(this.store.decisionsSeen)} seen${still ? ", standing still" : ""}`);
    if (still) return;
    this.shown = this.store.decisions.slice(-SHOWN_MAX).reverse();
    byId("decisions-empty").hidden = this.shown.length > 0;
    this.list.hidden = this.shown.length === 0;
    this.list.replaceChildren(...this.shown.map(row));
  }
}

function row(decision, n) {
  const failed = decision.outcome !== "completed";
  const button = el(
    "button",
    { type: "button", class: "decision" },
    el("span", { class: "when" }, clock(decision.ended_unix_s)),
    el("span", { class: "name" }, decision.worker ?? "no worker"),
    el("span", { class: "badge", "data-bad": failed }, spaced(failed ? decision.outcome : decision.reason)),
    el("span", { class: "small" }, figures(decision)),
  );
  button.dataset.n = n;
  return el("li", {}, button);
}

function figures(decision) {
  if (!decision.worker) return decision.detail ?? "Placed nowhere.";
  const cached = decision.predicted_cached_tokens;
  // The head of a refusal is no token.
  const ttft = decision.outcome.startsWith("worker_") ? null : decision.ttft_since_arrival_s;
  return (
    `${tokens(cached)} of ${tokens(decision.prompt_tokens)} tokens cached, ` +
    (ttft === null ? "no token" : ttft === undefined ? `TTFT ${seconds(decision.predicted_ttft_s)} predicted` : `TTFT ${seconds(ttft)}`)
  );
}
