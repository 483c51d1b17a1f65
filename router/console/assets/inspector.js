// The side panel: one worker, or one decision. It asks the admin API for details beyond the stream, again and
// again while it is open. Escape closes it and returns the focus.
import { call, Refused, workerPath } from "./api.js";
import { ask } from "./dialogs.js";
import { byId, el, meter, pairs, say } from "./dom.js";
import { condition } from "./store.js";
import { clock, count, counted, duration, percent, seconds, tokens } from "./units.js";
import { spaced } from "./words.js";

const ASK_MS = 2000;

export class Inspector {
  constructor(store, focusWorker, explain) {
    this.store = store;
    this.explain = explain;
    this.focusWorker = focusWorker;
    this.panel = byId("inspector");
    this.body = byId("inspector-body");
    this.worker = null; // id of the worker that is shown
    this.back = null;
    byId("inspector-close").addEventListener("click", () => this.close());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.panel.hidden && !byId("confirm").open) this.close();
    });
  }

  openWorker(id) {
    this.#open(id);
    this.worker = id;
    this.back = () => this.focusWorker(id);
    this.parts = {
      is: el("p", { class: "state" }),
      load: el("div", {}),
      buttons: el("div", { class: "buttons" }),
      drain: el("div", {}),
      facts: el("div", {}),
      decided: el("div", {}),
    };
    this.details = null;
    this.problem = "";
    this.body.replaceChildren(...Object.values(this.parts));
    this.#drawWorker();
    this.#askAgain();
  }

  openDecision(decision, button) {
    this.#open(`Decision ${decision.request_id}`);
    this.back = () => (button.isConnected ? button : byId("decisions")).focus();
    const parts = [
      el("p", {}, decision.why ? `${decision.why}.` : (decision.worker ? `Placed on ${decision.worker}: ${spaced(decision.reason)}.` : decision.detail)),
      decision.side && el("p", {}, `${decision.side}.`),
      pairs([
        ["Outcome", spaced(decision.outcome)],
        ["Ended", clock(decision.ended_unix_s)],
        ["Model", decision.model],
        ["Tenant", decision.tenant],
        ["Prompt", decision.prompt_tokens && `${count(decision.prompt_tokens)} tokens`],
        ["Cached, predicted", said(decision.predicted_cached_tokens, (n) => `${count(n)} tokens`)],
        ["Cached, as reported", said(decision.reported_cached_tokens, (n) => `${count(n)} tokens`)],
        ["TTFT predicted", said(decision.predicted_ttft_s, seconds)],
        ["TTFT since it arrived", said(decision.ttft_since_arrival_s, seconds)],
        ["Waited here", decision.wait_s ? seconds(decision.wait_s) : null],
        ["Took", said(decision.duration_s, seconds)],
        ["Decoded by", decision.decode_worker],
        ["Attempts", decision.attempts > 1 ? count(decision.attempts) : null],
        ["Detail", decision.worker ? decision.detail : null],
      ]),
      el(
        "div",
        { class: "buttons" },
        this.store.byId.has(decision.worker) &&
          el("button", { type: "button", onclick: () => this.openWorker(decision.worker) }, "Show the worker"),
        el("button", { type: "button", onclick: () => this.#explainAgain(decision.request_id) }, "What would be decided now?"),
      ),
    ];
    this.body.replaceChildren(...parts.filter(Boolean));
  }

  #explainAgain(requestId) {
    this.back = null;
    this.close();
    this.explain(requestId);
    byId("explain-body").focus();
  }

  close() {
    clearTimeout(this.timer);
    this.panel.hidden = true;
    this.worker = null;
    this.back?.();
    this.back = null;
  }

  update(changes) {
    if (!this.worker) return;
    const known = this.store.byId.get(this.worker);
    if (changes.all || changes.members || !known || changes.loads?.has(known.key)) this.#drawWorker();
  }

  #open(title) {
    clearTimeout(this.timer);
    this.worker = null;
    say(byId("inspector-title"), title);
    this.panel.hidden = false;
    byId("inspector-title").focus();
  }

  async #askAgain() {
    const id = this.worker;
    let problem = "";
    let details = null;
    let drain = null;
    try {
      details = await call(workerPath(id));
      if (details.state === "draining") drain = await call(workerPath(id, "/drain"));
    } catch (error) {
      problem = error instanceof Refused && error.status === 404 ? "" : error.message;
    }
    if (this.worker !== id) return;
    this.details = details;
    this.draining = drain;
    this.problem = problem;
    this.#drawWorker();
    this.timer = setTimeout(() => this.#askAgain(), ASK_MS);
  }

  #drawWorker() {
    const known = this.store.byId.get(this.worker);
    const { parts, details } = this;
    if (!known) {
      for (const part of Object.values(parts)) part.replaceChildren();
      parts.is.replaceChildren("This worker is no more.");
      return;
    }
    const is = condition(known);
    parts.is.replaceChildren(
      el("span", { class: "badge", "data-is": is }, is),
      ` ${SAID[is] ?? ""}`,
      this.problem ? el("span", { class: "problem" }, ` ${this.problem}`) : "",
    );
    parts.load.replaceChildren(
      pairs([
        ["Backlog", `${seconds(known.backlog_s)} of prefill`],
        ["In flight", inflightSaid(known, details)],
        ["Cache", cacheSaid(known, details)],
      ]),
    );
    this.#drawButtons(known);
    this.#drawDrain(known);
    parts.facts.replaceChildren(facts(known, details));
  }

  #drawButtons(known) {
    const drains = known.state === "draining";
    const kind = drains ? "undrain" : "drain";
    const box = this.parts.buttons;
    if (box.dataset.kind === kind) return;
    const had = box.contains(document.activeElement);
    box.dataset.kind = kind;
    const button = drains
      ? el("button", { type: "button", id: "undrain", onclick: () => this.#undrain(known.id) }, "Put back in service …")
      : el("button", { type: "button", id: "drain", class: "danger", onclick: () => this.#drain(known.id) }, "Drain …");
    box.replaceChildren(button);
    if (had) button.focus();
  }

  #drawDrain(known) {
    if (known.state !== "draining") {
      this.parts.drain.replaceChildren();
      this.drainedFrom = null;
      return;
    }
    const left = known.inflight + (this.draining?.waiting_for_it ?? 0);
    this.drainedFrom = Math.max(this.drainedFrom ?? 0, left, 1);
    const said = left
      ? `${counted(left, "request")} still in flight${waits(this.draining)}${expected(this.draining)}.`
      : "Nothing is in flight there: it can be stopped.";
    this.parts.drain.replaceChildren(
      el("label", {}, "Drained ", el("progress", { max: this.drainedFrom, value: this.drainedFrom - left })),
      el("p", { role: "status" }, said),
    );
  }

  #drain(id) {
    const known = this.store.byId.get(id);
    const same = [...this.store.workers.values()].filter(
      (each) => each !== known && condition(each) === "healthy" && each.role === known.role && each.bucket === known.bucket && each.site === known.site,
    ).length;
    return ask({
      title: `Drain ${id}?`,
      body: [
        el("p", {}, `All replicas send it no new requests. ${counted(known.inflight, "request")} in flight there may finish.`),
        el(
          "p",
          { class: same ? "" : "problem" },
          same
            ? `${counted(same, "healthy worker")} of the same kind ${same === 1 ? "takes" : "take"} over; its cached blocks must be computed again there.`
            : "No other healthy worker of the same kind is left to take over.",
        ),
      ],
      yes: "Drain it",
      danger: true,
      act: async () => {
        await call(workerPath(id, "/drain"), { method: "POST" });
        say(byId("said"), `${id} drains.`);
      },
    });
  }

  #undrain(id) {
    return ask({
      title: `Put ${id} back in service?`,
      body: [el("p", {}, "All replicas send it requests again.")],
      yes: "Put it back",
      act: async () => {
        await call(workerPath(id, "/undrain"), { method: "POST" });
        say(byId("said"), `${id} is back in service.`);
      },
    });
  }
}

const SAID = {
  healthy: "It takes requests.",
  draining: "It takes no new requests.",
  starting: "It was not asked yet, or has not answered for the first time.",
  unhealthy: "It does not answer health checks.",
  ejected: "Requests failed there: it gets none for a while.",
  "on trial": "Requests failed there: a few requests test it.",
};

function said(value, how) {
  return value === undefined || value === null ? null : how(value);
}

function cacheSaid(known, details) {
  const held = details ? `${tokens(details.held_tokens)} tokens` : "";
  if (known.held_percent < 0) return held && `${held}, of an unknown capacity`;
  const said = `${known.held_percent} % of ${tokens(known.capacity_tokens)} tokens${held && `: ${held}`}`;
  return meter(known.held_percent / 100, said, "cache");
}

function inflightSaid(known, details) {
  const prompt = details ? `, ${tokens(details.inflight_tokens)} tokens` : "";
  return `${counted(known.inflight, "request")}${prompt}`;
}

function waits(draining) {
  const n = draining?.waiting_for_it ?? 0;
  return n ? `, ${counted(n, "request")} waiting for it` : "";
}

function expected(draining) {
  const s = draining?.expected_s;
  return typeof s === "number" ? `, about ${duration(s)} more` : "";
}

function facts(known, details) {
  const labels = Object.entries(details?.labels ?? {}).map(([name, value]) => `${name}=${value}`);
  return pairs([
    ["Role", known.role],
    ["Site", known.site || "local"],
    ["Length bucket", known.bucket || "any length"],
    ["Engine", known.engine],
    ["Models", known.models.join(", ")],
    ["Circuit", known.circuit === "closed" ? null : `${spaced(known.circuit)}${details?.circuit_by ? `, by ${details.circuit_by}` : ""}${details?.circuit_wait_s ? `, tried again in ${duration(details.circuit_wait_s)}` : ""}`],
    ["Slow start", details && details.share < 1 ? `takes ${percent(details.share)} of its share` : null],
    ["Last health check", details?.detail],
    ["Started", details?.started_unix_s ? `${duration(Date.now() / 1000 - details.started_unix_s)} ago` : null],
    ["Connections", details?.connections ? `${count(details.connections.open)} open, ${count(details.connections.idle)} idle` : null],
    ["Labels", labels.join(", ")],
    ["URL", details?.url],
  ]);
}
