// "Why there?": a request that is pasted, or one of the latest, decided again without sending it anywhere.
import { call } from "./api.js";
import { byId, el, say, table } from "./dom.js";
import { wide } from "./pages.js";
import { clock, count, seconds, tokens } from "./units.js";
import { spaced } from "./words.js";

/** Candidates that are shown at first. */
const SHOWN_FIRST = 12;

const EXAMPLE = '{"model": "…", "messages": [{"role": "user", "content": "Hello"}]}';

export class ExplainPage {
  constructor() {
    this.answer = byId("explain-answer");
    byId("explain-body").setAttribute("placeholder", EXAMPLE);
    byId("explain-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#pasted();
    });
  }

  /** Ask again for the latest requests, unless the operator is about to choose one. */
  follow() {
    const list = byId("explain-recent");
    if (!list.matches(":hover") && !list.contains(document.activeElement)) this.open();
  }

  async open() {
    const list = byId("explain-recent");
    try {
      const { decisions } = await call("/decisions?limit=30");
      list.replaceChildren(
        ...decisions.map((each) =>
          el(
            "li",
            {},
            el(
              "button",
              { type: "button", class: "decision", onclick: () => this.past(each.request_id) },
              el("span", { class: "when" }, clock(each.ended_unix_s)),
              el("span", { class: "name" }, each.worker ?? "placed nowhere"),
              el("span", { class: "badge", "data-bad": each.outcome !== "completed" }, spaced(each.outcome)),
              el("span", { class: "small" }, `${tokens(each.prompt_tokens)} tokens, ${each.request_id}`),
            ),
          ),
        ),
      );
      byId("explain-none").hidden = decisions.length > 0;
    } catch (error) {
      list.replaceChildren(el("li", { class: "problem" }, error.message));
    }
  }

  /** Decide a past request again. */
  past(requestId) {
    return this.#ask({ request_id: requestId });
  }

  #pasted() {
    let request;
    try {
      request = JSON.parse(byId("explain-body").value);
    } catch (error) {
      this.#problem(`This is not JSON: ${error.message}`);
      return;
    }
    this.#ask({ endpoint: byId("explain-endpoint").value, request });
  }

  #problem(text) {
    this.answer.replaceChildren(el("p", { class: "problem" }, text));
  }

  async #ask(question) {
    this.answer.replaceChildren(el("p", { class: "quiet" }, "Deciding …"));
    try {
      this.answer.replaceChildren(...drawn(await call("/explain", { method: "POST", body: question })));
      say(byId("said"), "The decision is explained.");
    } catch (error) {
      this.#problem(error.message);
    }
  }
}

function drawn({ decision, policy, request, candidates, not_candidates: others, past, compared }) {
  const unit = policy.unit === "seconds" ? (cost) => seconds(cost) : (cost) => String(cost ?? "–");
  return [
    el("h3", {}, `Now: ${decision.outcome}${decision.worker ? ` on ${decision.worker}` : ""}`),
    el("p", { class: "wrap" }, decision.why),
    compared.note && el("p", { class: "problem" }, compared.note),
    past && el("p", { class: "wrap" }, then(past)),
    el(
      "p",
      { class: "small wrap" },
      `${policy.name} counts in ${policy.unit}, the lowest wins. The prompt has ${count(request.prompt_tokens)} tokens`,
      `${request.model ? ` for ${request.model}` : ""}${past ? "; its own blocks in the cache are found now" : ""}.`,
    ),
    candidates.length ? listed(candidates, unit) : null,
    others.length
      ? wide(
          "No candidates",
          table([["No candidate"], ["Reason"], ["Detail"]], others.map((each) => [each.worker, spaced(each.reason), each.detail]), "Workers that were no candidates"),
        )
      : null,
  ].filter(Boolean);
}

/** The cheapest candidates; a button shows all of a large fleet. */
function listed(candidates, unit) {
  const box = el("div", {});
  const draw = (shown) => {
    const rows = wide(
      "Candidates",
      table(
        [["Worker"], ["Cost", "number"], ["Cached", "number"], ["To compute", "number"], ["Queue", "number"], ["Prefill", "number"], ["TTFT", "number"], ["Lost because"]],
        candidates.slice(0, shown).map((each) => [
          el("span", { class: each.chosen ? "chosen" : "" }, each.chosen ? "✓ " : "", each.worker),
          unit(each.cost),
          tokens(each.safe_tokens),
          tokens(each.uncached_tokens),
          seconds(each.queue_s),
          seconds(each.prefill_s),
          seconds(each.ttft_s),
          each.lost_because ? el("span", { class: "reason" }, each.lost_because) : "",
        ]),
        "Candidates, the cheapest first",
      ),
    );
    const all = el("button", { type: "button", onclick: () => (draw(candidates.length), rowsOf(box).focus()) }, `Show all ${count(candidates.length)} candidates`);
    box.replaceChildren(rows, ...(candidates.length > shown ? [all] : []));
  };
  draw(SHOWN_FIRST);
  return box;
}

function rowsOf(box) {
  return box.querySelector(".scroll");
}

function then(past) {
  const ttft = past.ttft_since_arrival_s === null || past.outcome.startsWith("worker_") ? "" : `, first token after ${seconds(past.ttft_since_arrival_s)}`;
  const cached = past.reported_cached_tokens ?? past.predicted_cached_tokens;
  const said = cached === null ? "" : `, ${tokens(cached)} of ${tokens(past.prompt_tokens)} tokens cached`;
  return `Then, at ${clock(past.ended_unix_s)}: ${past.why ?? past.detail ?? spaced(past.outcome)}${said}${ttft}.`;
}
