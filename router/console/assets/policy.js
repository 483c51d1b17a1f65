// Switching the policy, for all replicas, with a comment for the history.
import { ask } from "./dialogs.js";
import { byId, el, say } from "./dom.js";
import { Refused } from "./api.js";

/** Ask which policy, and set it. */
export async function switchPolicy(call) {
  let known;
  try {
    known = await call("/policies");
  } catch (error) {
    say(byId("said"), error.message);
    return false;
  }
  const active = known.active.placement.policy;
  const about = el("p", { id: "policy-about", class: "quiet" });
  const choice = el(
    "select",
    { id: "policy-choice", autofocus: true, "aria-describedby": "policy-about" },
    known.policies.map((each) => el("option", { value: each.name, selected: each.name === active }, each.name)),
  );
  const comment = el("input", { id: "policy-comment", type: "text", maxlength: 300, autocomplete: "off" });
  const show = () => say(about, picks(known.policies.find((each) => each.name === choice.value)));
  choice.addEventListener("change", show);
  show();
  return ask({
    title: "Switch the policy?",
    body: [
      el("p", {}, "It decides which worker takes a request. All replicas change within a moment; requests in flight stay where they are."),
      el("label", {}, "Policy ", choice),
      about,
      el("label", {}, "Why (kept in the history) ", comment),
    ],
    yes: "Switch",
    act: async () => {
      if (choice.value === active) throw new Refused(0, `${active} decides already.`);
      await call("/settings", {
        method: "PATCH",
        body: { values: { "placement.policy": choice.value }, comment: comment.value },
      });
      say(byId("said"), `${choice.value} decides from now on.`);
    },
  });
}

/** What a policy picks, in the gateway's words. */
function picks(known) {
  if (!known) return "";
  return `${known.picks}${known.uses_cache ? "" : " It ignores cached blocks."}`;
}
