// Light or dark: as the system says, unless the operator chose. The choice is kept in this browser.
import { byId, say } from "./dom.js";

const NEXT = { automatic: "light", light: "dark", dark: "automatic" };
const KEY = "cacheway.theme";

function chosen() {
  const kept = localStorage.getItem(KEY);
  return kept in NEXT ? kept : "automatic";
}

function show(theme) {
  if (theme === "automatic") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  say(byId("theme-button"), `Theme: ${theme}`);
}

export function startTheme() {
  show(chosen());
  byId("theme-button").addEventListener("click", () => {
    const theme = NEXT[chosen()];
    localStorage.setItem(KEY, theme);
    show(theme);
  });
}
