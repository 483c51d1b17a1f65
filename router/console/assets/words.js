// Codes of the gateway in plain words. A code that is not here is shown as it is: newer replicas may know more.

export function spaced(code) {
  return String(code ?? "").replaceAll("_", " ");
}

const LINKS = {
  abundant: "has bandwidth to spare",
  scarce: "is nearly full: only prompts that gain much cross it",
  down: "is down: half of its transfers failed",
  probing: "is being tried with one transfer",
};

export function linkState(code) {
  return LINKS[code] ?? spaced(code);
}
