// Building elements. All text from outside becomes text, never markup: nothing here or elsewhere in the
// page sets innerHTML.

/** An element with attributes and children; strings become text, null and false are left out. */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === false || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function byId(id) {
  return document.getElementById(id);
}

/** Set an element's text, unless it is unchanged: a live region would be read again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table: columns of [title, kind], kind "number" for figures; rows of cells, text or nodes. */
export function table(columns, rows, caption) {
  return el(
    "table",
    {},
    el("caption", { class: "hidden" }, caption),
    el("thead", {}, el("tr", {}, columns.map(([title, kind]) => el("th", { scope: "col", class: kind }, title)))),
    el(
      "tbody",
      {},
      rows.map((row) =>
        el(
          "tr",
          {},
          row.map((cell, n) =>
            n === 0 ? el("th", { scope: "row" }, cell) : el("td", { class: columns[n][1] }, cell),
          ),
        ),
      ),
    ),
  );
}

/** Name and value pairs; pairs without a value are left out. */
export function pairs(list) {
  return el(
    "dl",
    { class: "pairs" },
    list
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

/** A bar of a share, 0 to 1, beside its figure in words. */
export function meter(share, said, kind = "") {
  const bar = el("span", { class: `meter ${kind}`, "aria-hidden": "true" }, el("span"));
  bar.firstChild.style.setProperty("--share", String(Math.min(Math.max(share, 0), 1)));
  return el("span", { class: "metered" }, bar, said);
}
