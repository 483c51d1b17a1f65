// Two lists: changes through the admin API, and tenants.
import { byId, el, table } from "./dom.js";
import { filled, wide } from "./pages.js";
import { count, moment, percent, tokens } from "./units.js";

/** Time before the end of a tenant's last key in which the page shows it as a problem, as the alert does: a week. */
const SOON_MS = 7 * 86_400_000;

export class AuditPage {
  open() {
    filled(byId("audit-list"), "/audit?limit=200", ({ changes, total }) => {
      if (!changes.length) return el("p", { class: "empty" }, "Nothing was changed through the admin API.");
      const listed = table(
        [["When"], ["Who"], ["From"], ["What"], ["Target"], ["Status", "number"], ["Detail"]],
        changes.map((each) => [
          el("span", { class: "nowrap" }, moment(each.at_unix_s)),
          each.actor || "–",
          `${each.client} at ${each.replica}`,
          el("code", {}, each.action),
          each.target ?? "",
          String(each.status),
          el("code", { class: "wrap" }, Object.keys(each.detail ?? {}).length ? JSON.stringify(each.detail) : ""),
        ]),
        "Changes through the admin API",
      );
      return [wide("Changes", listed), total > changes.length ? el("p", { class: "small" }, `${count(total)} are kept.`) : null];
    });
  }
}

export class TenantsPage {
  open() {
    filled(byId("tenants-list"), "/tenants", (said) => {
      if (!said.file) return el("p", { class: "empty" }, "No keys file is set: this gateway knows no tenants.");
      const problem = said.file.problem ?? said.limits_degraded;
      const caches = said.tenants.some((each) => each.cache);
      const listed = table(
        [
          ["Tenant"],
          ["Class"],
          ["Weight", "number"],
          ["Requests a minute", "number"],
          ["Tokens a minute", "number"],
          ["Tokens at once", "number"],
          ...(caches ? [["Cache", "number"]] : []),
          ["Keys"],
        ],
        said.tenants.map((each) => [
          el("span", {}, each.name, each.isolated ? el("span", { class: "quiet" }, " isolated") : ""),
          each.class ?? el("span", { class: "quiet" }, "default"),
          String(each.weight),
          limited(each.limits.requests_per_minute, each.left?.requests, count),
          limited(each.limits.tokens_per_minute, each.left?.tokens, tokens),
          limited(each.limits.concurrent_tokens, undefined, tokens),
          ...(caches ? [each.cache ? `${tokens(each.cache.tokens)}${each.cache.share ? `, share ${percent(each.cache.share)}` : ""}` : "–"] : []),
          keys(each.keys),
        ]),
        "Tenants",
      );
      return [problem ? el("p", { class: "problem" }, problem) : null, wide("Tenants", listed)];
    });
  }
}

/** A limit, and its rest as known to this replica. */
function limited(limit, left, said) {
  if (limit === null || limit === undefined) return el("span", { class: "quiet" }, "no limit");
  return left === undefined || left === null ? said(limit) : `${said(left)} left of ${said(limit)}`;
}

function keys({ valid, not_yet: notYet, expired, end_unix_s: endUnixS }) {
  const told = [`${count(valid)} valid`, notYet ? `${count(notYet)} not yet valid` : "", expired ? `${count(expired)} expired` : ""];
  const ends = endUnixS ? `; the last one ends ${moment(endUnixS)}` : "";
  const soon = endUnixS && endUnixS * 1000 - Date.now() < SOON_MS;
  return el("span", { class: soon ? "problem" : "" }, told.filter(Boolean).join(", "), ends);
}
