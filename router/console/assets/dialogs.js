// One modal dialog, for confirmations and for the token. The browser's own: it keeps the focus inside, closes with
// Escape, and gives the focus back.
import { keepToken, onTokenNeeded, token } from "./api.js";
import { byId, el, say } from "./dom.js";

let turn = Promise.resolve();

/**
 * Ask. `act` runs when the person agrees; while it throws, the dialog stays open and says why.
 * Resolves to whether it was done.
 */
export function ask(question) {
  const asked = turn.then(() => show(question));
  turn = asked.catch(() => {});
  return asked;
}

function show({ title, body, yes, danger = false, act }) {
  const dialog = byId("confirm");
  const form = dialog.querySelector("form");
  const button = byId("confirm-yes");
  say(byId("confirm-title"), title);
  byId("confirm-body").replaceChildren(...body);
  say(byId("confirm-problem"), "");
  say(button, yes);
  button.classList.toggle("danger", danger);
  button.disabled = false;
  return new Promise((resolve) => {
    let done = false;
    form.onsubmit = async (event) => {
      event.preventDefault();
      if (button.disabled) return;
      button.disabled = true;
      say(byId("confirm-problem"), "");
      try {
        await act();
        done = true;
        dialog.close();
      } catch (error) {
        say(byId("confirm-problem"), error.message);
      } finally {
        button.disabled = false;
      }
    };
    byId("confirm-no").onclick = () => dialog.close();
    dialog.onclose = () => resolve(done);
    dialog.showModal();
    (dialog.querySelector("[autofocus]") ?? byId("confirm-no")).focus();
  });
}

/** Ask for the token; the caller tries it at once. */
export function askToken(wrong) {
  const input = el("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", autofocus: true });
  return ask({
    title: "Token of the admin API",
    body: [
      wrong ? el("p", { class: "problem" }, "This token is not known here.") : null,
      el("p", {}, "It is kept in this tab until the tab is closed. A token that may only read shows everything and changes nothing."),
      el("label", {}, "Token ", input),
    ].filter(Boolean),
    yes: "Use it",
    act: async () => {
      const value = input.value.trim();
      if (!value) throw new Error("Type or paste a token.");
      keepToken(value);
    },
  });
}

export function startToken(changed) {
  let asking = null;
  onTokenNeeded((wrong) => {
    if (wrong) keepToken("");
    // A page asks for several things at once; a person is asked once.
    asking ??= askToken(wrong).finally(() => (asking = null));
    return asking;
  });
  byId("token-button").addEventListener("click", async () => {
    if (await askToken(false)) changed(token());
  });
}
