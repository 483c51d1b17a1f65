// The event stream, read with fetch so that it can carry a token. When it is lost, or silent for too long, it is
// asked for again after a pause that grows, with jitter: many pages must not come back at the same moment.
import { Refused, request } from "./api.js";

const PAUSE_S = [1, 2, 4, 8, 15];
const SILENCE_S = 6;

/** Cuts a byte stream into events: {event, data}. Pure, so that it can be tested. */
export class EventParser {
  constructor() {
    this.rest = "";
    this.decoder = new TextDecoder();
  }

  push(bytes) {
    const blocks = (this.rest + this.decoder.decode(bytes, { stream: true })).split("\n\n");
    this.rest = blocks.pop();
    return blocks.map(parsed).filter((each) => each !== null);
  }
}

function parsed(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) event = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? { event, data: data.join("\n") } : null;
}

/**
 * Follow the stream for ever.
 *
 * heard({event, data}) gets every event with its JSON read; changed({live, retryAtMs, why}) hears how the
 * connection is: live "connecting", "live", "lost" or "locked" (no token was given).
 */
export class Stream {
  constructor(heard, changed) {
    this.heard = heard;
    this.changed = changed;
    this.failures = 0;
    this.wake = () => {};
  }

  async run() {
    for (;;) {
      this.changed({ live: "connecting" });
      let why;
      try {
        why = await this.once();
      } catch (error) {
        why = said(error);
        if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
          this.changed({ live: "locked", why });
          await new Promise((wake) => (this.wake = wake));
          this.failures = 0;
          continue;
        }
      }
      const pauseS = PAUSE_S[Math.min(this.failures, PAUSE_S.length - 1)] * (0.75 + Math.random() / 2);
      this.failures += 1;
      this.changed({ live: "lost", retryAtMs: Date.now() + pauseS * 1000, why });
      await new Promise((wake) => {
        const timer = setTimeout(wake, pauseS * 1000);
        this.wake = () => {
          clearTimeout(timer);
          wake();
        };
      });
    }
  }

  /** Try at once instead of waiting any longer. */
  retry() {
    this.wake();
  }

  async once() {
    const stop = new AbortController();
    let alarm = setTimeout(() => stop.abort(), SILENCE_S * 1000);
    try {
      const answer = await request("/events", { signal: stop.signal });
      if (!answer.ok) {
        const body = await answer.json().catch(() => null);
        throw new Refused(answer.status, body?.error?.message ?? `it answered ${answer.status}`);
      }
      const reader = answer.body.getReader();
      const parser = new EventParser();
      for (;;) {
        clearTimeout(alarm);
        alarm = setTimeout(() => stop.abort(), SILENCE_S * 1000);
        const { done, value } = await reader.read();
        if (done) return "the gateway closed it";
        for (const { event, data } of parser.push(value)) {
          if (event === "end") return "this replica ends";
          if (event === "state") {
            this.failures = 0;
            this.changed({ live: "live" });
          }
          this.heard({ event, data: JSON.parse(data) });
        }
      }
    } finally {
      clearTimeout(alarm);
      stop.abort();
    }
  }
}

function said(error) {
  if (error instanceof Refused) return error.message;
  return error.name === "AbortError" ? `nothing came for ${SILENCE_S} seconds` : "the gateway cannot be reached";
}
