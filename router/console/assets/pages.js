// The pages of the console, chosen by the fragment of the address. A fragment never holds more than a page's name.
import { call } from "./api.js";
import { byId, el } from "./dom.js";

export class Pages {
  /** `pages` are named by their fragments; each has `open()`, which asks the API for its content. */
  constructor(pages) {
    this.pages = pages;
    this.links = [...document.querySelectorAll("#pages a")];
    addEventListener("hashchange", () => this.#show());
    this.#show();
  }

  /** The page that is shown. */
  get current() {
    const name = location.hash.slice(1);
    return name in this.pages ? name : "overview";
  }

  /** Go to a page. */
  go(name) {
    location.hash = name;
    this.#reveal(); // at once, so that what is there can take the focus
  }

  /** Ask again for the page's content, as after a change or with another token. */
  refresh() {
    this.pages[this.current]?.open?.();
  }

  #show() {
    this.#reveal();
    this.refresh();
  }

  #reveal() {
    const { current } = this;
    for (const name of Object.keys(this.pages)) byId(`page-${name}`).hidden = name !== current;
    for (const link of this.links) {
      if (link.hash.slice(1) === current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
}

/** Fill a box with the API's answer, or with its error. */
export async function filled(box, path, draw) {
  try {
    const answer = await call(path);
    box.replaceChildren(...[draw(answer)].flat().filter(Boolean));
    return answer;
  } catch (error) {
    box.replaceChildren(el("p", { class: "problem" }, error.message));
    return null;
  }
}

/** A table in a box of its own, which scrolls sideways on a narrow screen and by keyboard. */
export function wide(name, drawn) {
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": name }, drawn);
}
