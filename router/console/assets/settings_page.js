// Settings with their origin, changes of the live ones for all replicas, and the history from which they are undone.
import { call } from "./api.js";
import { ask } from "./dialogs.js";
import { byId, el, say, table } from "./dom.js";
import { filled, wide } from "./pages.js";
import { moment } from "./units.js";

const VALUE_MAX = 300;

export class SettingsPage {
  constructor() {
    byId("settings-filter").addEventListener("input", () => this.#draw());
    byId("settings-which").addEventListener("change", () => this.#draw());
  }

  async open() {
    const history = filled(byId("settings-history"), "/settings/history?limit=50", (said) => this.#history(said));
    try {
      this.said = await call("/settings");
      this.#draw();
    } catch (error) {
      byId("settings-list").replaceChildren(el("p", { class: "problem" }, error.message));
    }
    await history;
  }

  /** Give the focus back: the button that was pressed was replaced. */
  #focus(box, label) {
    const buttons = [...byId(box).querySelectorAll("button")];
    (buttons.find((button) => button.getAttribute("aria-label") === label) ?? buttons[0])?.focus();
  }

  #draw() {
    if (!this.said) return;
    const words = byId("settings-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const which = byId("settings-which").value;
    const rows = Object.entries(this.said.settings).filter(
      ([key, each]) =>
        (which === "all" || (which === "live" ? each.live : each.source !== "default")) &&
        words.every((word) => `${key} ${each.description}`.toLowerCase().includes(word)),
    );
    say(byId("settings-sum"), `${rows.length} of ${Object.keys(this.said.settings).length}, revision ${this.said.revision}`);
    const list = byId("settings-list");
    if (!rows.length) {
      list.replaceChildren(el("p", { class: "empty" }, which === "set" ? "Every setting has its default." : "No setting fits."));
      return;
    }
    list.replaceChildren(
      ...[
        this.said.note && el("p", { class: "problem" }, this.said.note),
        wide("Settings", table([["Setting"], ["Value"], ["From"], ["Change"]], rows.map((row) => this.#row(row)), "Settings")),
      ].filter(Boolean),
    );
  }

  #row([key, each]) {
    return [
      el("span", {}, el("code", {}, key), el("span", { class: "small about" }, each.description)),
      el("code", { class: "wrap" }, cut(listed(each.value)), each.refused ? el("span", { class: "problem" }, ` ${each.refused}`) : ""),
      `${each.source}${each.place ? `, ${each.place}` : ""}`,
      each.live ? el("button", { type: "button", class: "plain", "aria-label": `Change ${key}`, onclick: () => this.#change(key, each) }, "Change …") : el("span", { class: "quiet" }, "restart"),
    ];
  }

  async #change(key, each) {
    const input = each.choices.length
      ? el("select", { autofocus: true }, each.choices.map((name) => el("option", { value: name, selected: name === each.value }, name)))
      : el("input", { type: "text", value: typeof each.value === "string" ? each.value : written(each.value), autocomplete: "off", spellcheck: "false", autofocus: true });
    const comment = el("input", { type: "text", maxlength: 300, autocomplete: "off" });
    const done = await ask({
      title: `Change ${key}?`,
      body: [
        el("p", {}, each.description),
        el("p", { class: "quiet" }, `Allowed: ${each.allowed}. Default: ${written(each.default)}. All replicas follow within a moment.`),
        el("label", {}, "Value ", input),
        el("label", {}, "Why (kept in the history) ", comment),
      ],
      yes: "Change it",
      act: () => this.#patch({ values: { [key]: read(input.value, each.value) }, comment: comment.value }),
    });
    if (!done) return;
    say(byId("said"), `${key} is changed.`);
    this.#focus("settings-list", `Change ${key}`);
  }

  async #patch(body) {
    await call("/settings", { method: "PATCH", body: { ...body, expected_revision: this.said.revision } });
    await this.open();
  }

  #history(said) {
    if (!said.changes.length) return el("p", { class: "empty" }, "Nothing was changed since the start.");
    const listed = table(
      [["When"], ["Who"], ["What"], ["Why"], ["Undo"]],
      said.changes.map((change) => [
        el("span", { class: "nowrap" }, moment(change.at_unix_s)),
        `${change.actor || "–"} at ${change.replica}`,
        el("ul", {}, Object.entries(change.values).map(([key, { before, after }]) => el("li", { class: "wrap" }, el("code", {}, `${key}: ${was(before)} → ${was(after)}`)))),
        change.comment,
        el("button", { type: "button", class: "plain", "aria-label": `Undo the change of ${moment(change.at_unix_s)}`, onclick: () => this.#undo(change) }, "Undo …"),
      ]),
      "Changes of settings",
    );
    return wide("Changes of settings", listed);
  }

  async #undo(change) {
    const done = await ask({
      title: `Undo the change of ${moment(change.at_unix_s)}?`,
      body: [el("p", {}, "Every setting gets the value that it had before: this change and all later ones are undone, for all replicas. That is a change like any other, and can be undone itself.")],
      yes: "Undo it",
      act: async () => {
        await call("/settings/rollback", { method: "POST", body: { change_id: change.change_id } });
        await this.open();
      },
    });
    if (!done) return;
    say(byId("said"), "The change is undone.");
    this.#focus("settings-history", `Undo the change of ${moment(change.at_unix_s)}`);
  }
}

/** A list of words as words, so that the lines break between them. */
function listed(value) {
  const words = Array.isArray(value) && value.length > 0 && value.every((each) => typeof each === "string");
  return words ? value.join(" ") : written(value);
}

function written(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** Enough of a long value, as of a list of workers; the dialog has all of it. */
function cut(text) {
  return text.length > VALUE_MAX ? `${text.slice(0, VALUE_MAX)} … and ${text.length - VALUE_MAX} more characters` : text;
}

function was(value) {
  return value === null ? "as at the start" : written(value);
}

/** What was typed, as the setting has it: text stays text, everything else is JSON. */
export function read(typed, before) {
  if (typeof before === "string") return typed;
  try {
    return JSON.parse(typed);
  } catch {
    return typed;
  }
}
