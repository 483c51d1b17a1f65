// Cached blocks: the starts of prompts that save most, and the blocks that each worker is believed to hold.
import { byId, el, meter, table } from "./dom.js";
import { filled, wide } from "./pages.js";
import { clock, count, percent, tokens } from "./units.js";

export class TreePage {
  open() {
    filled(byId("tree-starts"), "/tree?limit=50", starts);
    filled(byId("tree-workers"), "/tree/workers?limit=200", workers);
  }
}

function starts(said) {
  const { savings } = said;
  return [
    el(
      "p",
      { class: "quiet" },
      `${tokens(said.tokens)} tokens in ${count(said.blocks)} of at most ${count(said.blocks_max)} blocks`,
      said.copies_mean ? `, held by ${said.copies_mean.toFixed(1)} workers on average` : "",
      savings.since_unix_s ? `. ${tokens(savings.saved_tokens)} tokens saved in ${count(savings.requests)} requests since ${clock(savings.since_unix_s)}` : "",
      ".",
    ),
    said.prefixes.length
      ? wide(
          "Starts of prompts",
          table(
            [["Start"], ["Model"], ["Requests", "number"], ["Tokens saved", "number"], ["Of their prompts", "number"], ["Tokens in common", "number"], ["Branches", "number"], ["Held by"]],
            said.prefixes.map((each) => [
              el("code", {}, each.prefix),
              each.model ?? "",
              count(each.requests),
              tokens(each.saved_tokens),
              percent(each.saved_ratio),
              tokens(each.tokens),
              count(each.branches),
              held(each),
            ]),
            "Starts of prompts that save most",
          ),
        )
      : el("p", { class: "empty" }, "No completed request has reused anything lately."),
  ];
}

function held(start) {
  const named = start.holders.slice(0, 3).join(", ");
  return start.holders_count > 3 ? `${named} and ${count(start.holders_count - 3)} more` : named;
}

function workers(said) {
  if (!said.workers.length) return el("p", { class: "empty" }, "No worker is known.");
  const listed = table(
    [["Worker"], ["Role"], ["Holds", "number"], ["Full"], ["Of the tree", "number"]],
    said.workers.map((each) => [
      each.worker,
      each.role,
      `${tokens(each.held_tokens)} tokens`,
      each.full_ratio === null ? "" : meter(each.full_ratio, percent(each.full_ratio), "cache"),
      percent(each.tree_ratio),
    ]),
    "Cached blocks of workers",
  );
  return [wide("Cached blocks of workers", listed), said.omitted ? el("p", { class: "small" }, `${count(said.omitted)} more are not listed.`) : null];
}
