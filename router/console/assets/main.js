// The page: one stream in, views that draw its changes, once per frame at most.
import { call } from "./api.js";
import { Charts } from "./charts.js";
import { Decisions } from "./decisions.js";
import { startToken } from "./dialogs.js";
import { byId, say } from "./dom.js";
import { ExplainPage } from "./explain_page.js";
import { FleetMap } from "./fleet_map.js";
import { Inspector } from "./inspector.js";
import { AuditPage, TenantsPage } from "./lists_pages.js";
import { Pages } from "./pages.js";
import { switchPolicy } from "./policy.js";
import { Sections } from "./sections.js";
import { SettingsPage } from "./settings_page.js";
import { Store } from "./store.js";
import { Stream } from "./stream.js";
import { startTheme } from "./theme.js";
import { TreePage } from "./tree_page.js";
import { TroubleList } from "./troubles.js";

const store = new Store();
let map;
const explain = new ExplainPage();
const inspector = new Inspector(store, (id) => map.focus(id), (requestId) => {
  pages.go("explain");
  explain.past(requestId);
});
map = new FleetMap(store, (id) => inspector.openWorker(id));
const decisions = new Decisions(store, (decision, button) => inspector.openDecision(decision, button));
const sections = new Sections(store, () => switchPolicy(call));
const stream = new Stream(heard, (connection) => troubles.connected(connection));
const troubles = new TroubleList(store, () => stream.retry());
const pages = new Pages({
  overview: {},
  explain,
  tree: new TreePage(),
  settings: new SettingsPage(),
  audit: new AuditPage(),
  tenants: new TenantsPage(),
});
const views = [new Charts(store), map, decisions, sections, troubles, inspector];

let gathered = null;

function heard(event) {
  const changes = store.take(event);
  if (gathered === null) requestAnimationFrame(draw);
  gathered = merged(gathered, changes);
}

function merged(before, now) {
  if (before === null) return now;
  return {
    all: before.all || now.all,
    members: before.members || now.members,
    samples: before.samples || now.samples,
    decisions: before.decisions || now.decisions,
    loads: new Set([...(before.loads ?? []), ...(now.loads ?? [])]),
    sections: new Set([...(before.sections ?? []), ...(now.sections ?? [])]),
  };
}

function draw() {
  const changes = gathered;
  gathered = null;
  if (changes.all) {
    say(byId("replica"), store.replica);
    say(byId("version"), store.version);
    document.title = `Cacheway – ${store.replica}`;
    showTenants();
  }
  for (const view of views) view.update(changes);
  if (changes.samples && pages.current === "explain") explain.follow();
}

/** A fleet without tenants has no page for them. */
async function showTenants() {
  try {
    byId("tenants-link").hidden = (await call("/tenants")).file === null;
  } catch {
    byId("tenants-link").hidden = true;
  }
}

startTheme();
startToken(() => {
  stream.retry();
  pages.refresh();
});
stream.run();
