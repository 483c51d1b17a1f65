// The admin API: the token, and calls with errors in words.

const KEY = "cacheway.token";

/** Where the API is: beside this page, also behind an ingress that puts /admin in front. */
const BASE = new URL(import.meta.url).pathname.replace(/\/console\/assets\/[^/]*$/, "");

export const TIMEOUT_MS = 15000;

/** Error that the API answered. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let askForToken = async () => false;

/** Who asks a person for a token when one is needed: resolves to whether there is one now. */
export function onTokenNeeded(ask) {
  askForToken = ask;
}

export function token() {
  return sessionStorage.getItem(KEY) ?? "";
}

/** Keep the token in this tab, until it is closed. */
export function keepToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** Fetch with the token. A 401 asks for one and tries again; a person may take their time, so each try has its own. */
export async function request(path, { method = "GET", body, signal, timeoutMs } = {}) {
  for (;;) {
    const sent = token();
    const headers = {};
    if (sent) headers.authorization = `Bearer ${sent}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const answer = await fetch(BASE + path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: timeoutMs === undefined ? signal : AbortSignal.timeout(timeoutMs),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
    if (answer.status !== 401) return answer;
    const known = token() !== sent || (await askForToken(sent !== ""));
    if (!known) throw new Refused(401, "A token is needed.");
  }
}

/** A JSON answer. Throws Refused with the API's own words, or a sentence about the network. */
export async function call(path, options = {}) {
  let answer;
  try {
    answer = await request(path, { ...options, timeoutMs: TIMEOUT_MS });
  } catch (error) {
    if (error instanceof Refused) throw error;
    throw new Refused(0, error.name === "TimeoutError" ? "The gateway did not answer in time." : "The gateway cannot be reached.");
  }
  const said = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, said?.error?.message ?? `The gateway answered ${answer.status}.`);
  return said;
}

/** The path of a worker, whose id may hold anything. */
export function workerPath(id, action = "") {
  return `/workers/${id.split("/").map(encodeURIComponent).join("/")}${action}`;
}
