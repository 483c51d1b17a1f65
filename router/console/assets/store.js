// What the stream has told so far. Views ask this; no other module keeps state of the fleet.

const DECISIONS_KEPT = 200;

function named(fields, row) {
  return Object.fromEntries(fields.map((field, n) => [field, row[n]]));
}

export class Store {
  constructor() {
    this.known = false;
    this.replica = "";
    this.version = "";
    this.atUnixS = 0;
    this.workers = new Map(); // key -> facts and load
    this.byId = new Map();
    this.sections = {};
    this.samples = [];
    this.samplesMax = 120;
    this.decisions = [];
    this.decisionsSeen = 0;
  }

  /** Take in an event. Returns the changes: {all, members, loads: Set of keys, sections: Set, samples, decisions}. */
  take({ event, data }) {
    if (event === "state") return this.#state(data);
    if (event === "change") return this.#change(data);
    if (event === "decisions") return this.#decided(data);
    return {};
  }

  #state(data) {
    this.fields = [data.worker_fields, data.load_fields, data.sample_fields];
    this.known = true;
    this.replica = data.replica;
    this.version = data.version;
    this.workers.clear();
    this.byId.clear();
    this.decisions = [];
    this.decisionsSeen = 0;
    this.#put(data.workers, data.loads);
    this.sections = data.sections;
    this.samples = [];
    this.#sampled(data.samples);
    this.#told(data.decisions);
    this.atUnixS = data.at_unix_s;
    return { all: true };
  }

  #change(data) {
    this.atUnixS = data.at_unix_s;
    for (const key of data.gone ?? []) this.#drop(key);
    const loads = this.#put(data.workers ?? [], data.loads ?? []);
    Object.assign(this.sections, data.sections);
    this.#sampled(data.samples ?? []);
    return {
      members: Boolean(data.workers || data.gone),
      loads,
      sections: new Set(Object.keys(data.sections ?? {})),
      samples: Boolean(data.samples),
    };
  }

  #decided(data) {
    this.#told(data.decisions);
    this.decisionsSeen += data.skipped;
    return { decisions: true };
  }

  #told(decisions) {
    this.decisionsSeen += decisions.length;
    this.decisions.push(...decisions);
    this.decisions.splice(0, this.decisions.length - DECISIONS_KEPT);
  }

  #sampled(rows) {
    this.samples.push(...rows.map((row) => named(this.fields[2], row)));
    this.samples.splice(0, this.samples.length - this.samplesMax);
  }

  #put(workers, loads) {
    for (const row of workers) {
      const facts = named(this.fields[0], row);
      const before = this.workers.get(facts.key);
      if (before && before.id !== facts.id) this.#drop(facts.key);
      const worker = Object.assign(before?.id === facts.id ? before : { backlog_s: 0, inflight: 0, held_percent: 0 }, facts);
      worker.words = [facts.id, facts.role, facts.site, facts.bucket, condition(facts), facts.engine, ...facts.models]
        .join("\n")
        .toLowerCase();
      this.workers.set(facts.key, worker);
      this.byId.set(facts.id, worker);
    }
    const moved = new Set();
    const fields = this.fields[1];
    for (const row of loads) {
      const worker = this.workers.get(row[0]);
      if (!worker) continue;
      for (let n = 1; n < fields.length; n += 1) worker[fields[n]] = row[n];
      moved.add(row[0]);
    }
    return moved;
  }

  #drop(key) {
    const worker = this.workers.get(key);
    if (worker && this.byId.get(worker.id) === worker) this.byId.delete(worker.id);
    this.workers.delete(key);
  }
}

/** One word for a worker's condition: its state, or that of its circuit. */
export function condition(worker) {
  if (worker.state === "healthy" && worker.circuit === "open") return "ejected";
  if (worker.state === "healthy" && worker.circuit === "half_open") return "on trial";
  return worker.state;
}
