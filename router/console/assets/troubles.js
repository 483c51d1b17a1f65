// What is wrong, in the gateway's own sentences, and whether this page still hears from it. Rows are kept while they
// last, so that a screen reader hears each of them once.
import { byId, el, say } from "./dom.js";
import { clock, duration } from "./units.js";

const SIGNS = { critical: "✕", warning: "!", notice: "i" };
const NAMES = { critical: "Critical", warning: "Degraded", notice: "Notice" };

export class TroubleList {
  constructor(store, retry) {
    this.store = store;
    this.box = byId("troubles");
    this.rows = new Map(); // code -> {element, what, effect, since}
    this.connection = { live: "connecting" };
    this.lost = this.#row("connection", "warning");
    this.lost.element.append(el("button", { type: "button", class: "plain", onclick: retry }, "Try now"));
    // The seconds tick once a second; only the sentence around them is announced.
    setInterval(() => this.tick(), 1000);
  }

  connected(connection) {
    this.connection = connection;
    const { live } = connection;
    const chip = byId("live");
    chip.dataset.live = live;
    document.documentElement.dataset.live = live;
    const said = { connecting: "Connecting", live: "Live", lost: "Not live", locked: "Token needed" }[live];
    say(byId("live-said"), said);
    // While it connects again nothing is known yet: the last message stays.
    if (live === "live") this.lost.element.remove();
    if (live === "lost" || live === "locked") {
      const why = connection.why ? ` (${connection.why})` : "";
      say(this.lost.what, live === "locked" ? `Nothing is shown without a token${why}.` : `The stream is lost${why}.`);
      if (!this.lost.element.isConnected) this.box.prepend(this.lost.element);
    }
    this.tick();
  }

  update(changes) {
    if (!changes.all && !changes.sections?.has("troubles")) return;
    const troubles = this.store.sections.troubles ?? [];
    const codes = new Set(troubles.map((trouble) => trouble.code));
    for (const [code, row] of this.rows) {
      if (!codes.has(code)) {
        row.element.remove();
        this.rows.delete(code);
      }
    }
    for (const trouble of troubles) {
      let row = this.rows.get(trouble.code);
      if (!row) {
        row = this.#row(trouble.code, trouble.severity);
        this.rows.set(trouble.code, row);
        this.box.append(row.element);
      }
      say(row.what, trouble.what);
      say(row.effect, trouble.effect);
      row.since = trouble.since_unix_s;
    }
    this.tick();
  }

  tick() {
    const now = Date.now() / 1000;
    for (const row of this.rows.values()) {
      // By the gateway's clock, as far as we heard it: ours may be wrong.
      say(row.for, `for ${duration(this.store.atUnixS - row.since)}`);
    }
    const { live, retryAtMs } = this.connection;
    if (live === "lost") {
      const pause = Math.max(Math.ceil(retryAtMs / 1000 - now), 0);
      const from = this.store.atUnixS ? `Figures are of ${clock(this.store.atUnixS)}. ` : "";
      say(this.lost.effect, from);
      say(this.lost.for, `next try in ${duration(pause)}`);
    } else if (live === "locked") {
      say(this.lost.effect, "");
      say(this.lost.for, "");
    }
  }

  #row(code, severity) {
    const what = el("strong", {});
    const effect = el("span", {});
    const since = el("span", { class: "quiet nowrap", "aria-live": "off" });
    const element = el(
      "div",
      { class: "trouble", "data-severity": severity, "data-code": code },
      el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[severity] ?? "!"),
      el("p", {}, el("span", { class: "hidden" }, `${NAMES[severity] ?? severity}: `), what, " ", effect, " ", since),
    );
    return { element, what, effect, for: since, since: 0 };
  }
}
