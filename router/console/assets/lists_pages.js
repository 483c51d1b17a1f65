// Two lists: changes through the admin API, and tenants.
import { byId, el, table } from "./dom.js";
import { filled, wide } from "./pages.js";
import { count, moment, percent, tokens } from "./units.js";

export class AuditPage {
  open() {
    filled(byId("audit-list"), "/audit?limit=200", ({ changes, total }) => {
      if (!changes.length) return el("p", { class: "empty" }, "Nothing was changed through the admin API.");
      const listed = table(
        [["When"], ["Who"], ["From"], ["What"], ["Target"], ["Status", "number"], ["Detail"]],
        changes.map((each) => [
          moment(each.at_unix_s),
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
      const listed = table(
        [["Tenant"], ["Class"], ["Weight", "number"], ["Requests a minute", "number"], ["Tokens a minute", "number"], ["Cache"], ["Keys", "number"]],
        said.tenants.map((each) => [
          el("span", {}, each.name, each.isolated ? el("span", { class: "quiet" }, " isolated") : ""),
          each.class ?? "",
          String(each.weight),
          each.limits.requests_per_minute === null ? "–" : count(each.limits.requests_per_minute),
          each.limits.tokens_per_minute === null ? "–" : tokens(each.limits.tokens_per_minute),
          each.cache ? `${tokens(each.cache.tokens)}${each.cache.share ? `, share ${percent(each.cache.share)}` : ""}` : "",
          `${count(each.keys.valid)} valid${each.keys.expired ? `, ${count(each.keys.expired)} expired` : ""}`,
        ]),
        "Tenants",
      );
      return [problem ? el("p", { class: "problem" }, problem) : null, wide("Tenants", listed)];
    });
  }
}
