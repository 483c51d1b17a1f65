// What stands below the map: the policy, length buckets, the queue, links between sites, replicas.
import { byId, el, meter, pairs, say, table } from "./dom.js";
import { bandwidth, bytes, count, counted, duration, percent, seconds, tokens } from "./units.js";
import { linkState } from "./words.js";

/** Panels that are hidden while the fleet does not use their subject. */
const UNUSED = new Set(["buckets", "links"]);

const EMPTY = {
  queue: "Nothing waits.",
  replicas: "No replica was heard of yet.",
};

export class Sections {
  constructor(store, switchPolicy) {
    this.store = store;
    this.switchPolicy = switchPolicy;
    this.draw = { policy, buckets, queue, links, replicas };
  }

  update(changes) {
    if (!changes.all && !changes.sections) return;
    for (const [name, draw] of Object.entries(this.draw)) {
      if (!changes.all && !changes.sections.has(name)) continue;
      const box = byId(name);
      const held = box.contains(document.activeElement) ? document.activeElement.id : "";
      const drawn = draw(this.store.sections[name], this);
      if (UNUSED.has(name)) box.closest(".panel").hidden = !drawn;
      box.replaceChildren(drawn ?? el("p", { class: "empty" }, EMPTY[name] ?? ""));
      // The operator keeps the focus although a figure changed.
      if (held) byId(held)?.focus();
    }
  }
}

function policy(said, { switchPolicy, store }) {
  if (!said) return el("p", { class: "empty" }, "Not known yet.");
  const decodes = [...store.workers.values()].some((worker) => worker.role === "decode");
  return el(
    "div",
    {},
    el("p", { class: "big" }, el("code", {}, said.policy)),
    pairs([
      ["Shadow", said.shadow && `${said.shadow}, asked about ${percent(said.shadow_ratio)} of the prompts`],
      ["Of prefill workers", said.prefill],
      ["Of decode workers", decodes ? said.decode : null],
      ["Threshold of remote prefill", said.threshold_tokens && `${tokens(said.threshold_tokens)} uncached tokens`],
    ]),
    el("button", { type: "button", id: "switch", onclick: switchPolicy }, "Switch policy …"),
  );
}

function buckets(said) {
  say(byId("buckets-sum"), said?.length ? "requests and spills of late" : "");
  if (!said?.length) return null;
  return table(
    [["Tokens"], ["Workers", "number"], ["Load"], ["Backlog", "number"], ["Requests", "number"], ["Spilled", "number"]],
    said.map((bucket) => [
      bucket.name,
      count(bucket.workers),
      bucket.load === null ? "–" : meter(bucket.load, percent(bucket.load), bucket.load > 0.9 ? "full" : ""),
      seconds(bucket.backlog_s),
      count(bucket.requests),
      count(bucket.spilled),
    ]),
    "Length buckets",
  );
}

function queue(said) {
  say(byId("queue-sum"), said ? `${counted(said.requests, "request")}, oldest ${seconds(said.oldest_wait_s)}` : "");
  if (!said?.classes?.length) return null;
  return table(
    [["Class"], ["Waiting", "number"], ["Oldest", "number"], ["Work", "number"]],
    said.classes.map((each) => [
      each.class ?? "others",
      count(each.requests),
      seconds(each.oldest_wait_s),
      seconds(each.service_s),
    ]),
    "Requests that wait, by class",
  );
}

function links(said) {
  if (!said?.length) return null;
  return table(
    [["Link"], ["State"], ["In use"], ["Reserved", "number"], ["Lost", "number"]],
    said.map((link) => [
      link.link.replace(">", " → "),
      el("span", { class: "badge", "data-link": link.state, title: linkState(link.state) }, link.state),
      meter(link.utilisation, percent(link.utilisation), link.utilisation > 0.9 ? "full" : ""),
      `${bandwidth(link.reserved_bytes_per_s)} of ${bandwidth(link.cap_bytes_per_s)}`,
      percent(link.loss_ratio),
    ]),
    "Links between sites",
  );
}

function replicas(said) {
  if (!said?.length) return null;
  return table(
    [["Replica"], ["Version"], ["Up", "number"], ["In flight", "number"], ["Waiting", "number"], ["Log lag", "number"], ["CPU", "number"], ["Memory", "number"]],
    said.map((each) => (each.known ? replica(each) : [each.id, el("span", { class: "nowrap" }, "no word"), ...Array(6).fill("–")])),
    "Replicas of this gateway",
  );
}

function replica(each) {
  const name = el("span", {}, each.id, each.writes_snapshots && el("span", { class: "quiet" }, " writes snapshots"));
  if (each.degraded?.length) name.append(el("span", { class: "problem" }, ` ! ${each.degraded.join("; ")}`));
  return [
    name,
    each.version,
    duration(Date.now() / 1000 - each.started_unix_s),
    count(each.inflight),
    count(each.waiting),
    seconds(each.lag_s),
    percent(each.cpu_ratio),
    bytes(each.rss_bytes),
  ];
}
