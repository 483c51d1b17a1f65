// "Why?": the gateway is asked what it would decide now for a prompt like that of a decision, and what each worker
// would cost (POST /explain, which changes nothing).
import { call } from "./api.js";
import { el, table } from "./dom.js";
import { count, counted, seconds } from "./units.js";
import { spaced } from "./words.js";

const SHOWN_MAX = 50;

/** A button that asks, and what was answered below it. */
export function why(decision) {
  const answer = el("div", { "aria-live": "polite" });
  const button = el("button", { type: "button", class: "why" }, "What would be decided now?");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      answer.replaceChildren(...explained(await call("/explain", { method: "POST", body: asked(decision) })));
    } catch (error) {
      answer.replaceChildren(el("p", { class: "problem" }, error.message));
    } finally {
      button.disabled = false;
    }
  });
  return el("div", { class: "explained" }, el("div", { class: "buttons" }, button), answer);
}

/** Of a prompt only the hash of its start is kept, so the answer says who holds that, and what the rest would cost. */
function asked(decision) {
  return {
    model: decision.model,
    prompt_tokens: decision.prompt_tokens,
    block_hashes: decision.prefix ? [decision.prefix] : [],
    tenant: decision.tenant ?? "",
    limit: SHOWN_MAX,
  };
}

function explained(said) {
  const candidates = said.candidates.map((each) =>
    el(
      "li",
      {},
      el("p", { class: "candidate" }, el("span", { class: "name" }, each.worker), cost(each, said.policy)),
      el(
        "p",
        { class: "small" },
        `${count(each.matched_tokens)} matched, ${count(each.uncached_tokens)} uncached tokens, backlog ${seconds(each.backlog_s)}`,
      ),
      each.lost_because ? el("p", {}, each.lost_because) : el("p", { class: "chosen" }, "The policy's choice."),
    ),
  );
  const others = said.not_candidates.map((each) => [each.worker, each.detail || spaced(each.reason)]);
  const omitted = Object.entries(said.not_candidates_omitted).map(([reason, n]) => `${count(n)} ${spaced(reason)}`);
  return [
    el("p", {}, said.decision.why),
    el("p", { class: "quiet" }, `For a prompt of ${counted(said.request.prompt_tokens, "token")} with the same start, by ${spaced(said.policy.name)}.`),
    candidates.length ? el("ol", { class: "candidates", "aria-label": "Candidates" }, candidates) : null,
    said.candidates_omitted.count ? el("p", { class: "quiet" }, `And ${counted(said.candidates_omitted.count, "candidate")} more.`) : null,
    scrolled("No candidates", [["No candidate"], ["Why"]], others),
    omitted.length ? el("p", { class: "quiet" }, `And more: ${omitted.join(", ")}.`) : null,
  ].filter(Boolean);
}

function cost(each, policy) {
  if (each.cost === null) return el("span", { class: "badge" }, "not considered");
  const figure = Number(each.cost.toPrecision(4)).toString();
  return el("span", { class: "badge" }, `cost ${figure}${policy.unit ? ` ${policy.unit}` : ""}`);
}

function scrolled(name, columns, rows) {
  if (!rows.length) return null;
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": name }, table(columns, rows, name));
}
