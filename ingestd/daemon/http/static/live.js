// The connection to the daemon: the last known state of all mappings and policies, kept up to date by /events.

import { duration, plural } from "./format.js";

const RETRY_MS = 2000;
// The daemon sends something every five seconds.
const SILENT_MS = 12000;
const ANSWER_MS = 3000;
// Producers that use transactions hide records for a moment all the time.
const HIDDEN_SECONDS = 60;

/**
 * Follows the daemon. `onChange(names, removed)` is called after every event with the mappings that changed, or with
 * null if everything did; `onLink(state)` when the connection is "live" or "gone".
 */
export class Live {
  constructor({ onChange, onLink }) {
    this.mappings = new Map();
    this.policies = [];
    this.daemon = null;
    this.since = null;
    this.link = "connecting";
    this.offset = 0;
    this.onChange = onChange;
    this.onLink = onLink;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#close() : this.#connect()));
    this.#connect();
  }

  /** The time of the daemon's clock, in seconds since 1970. */
  get now() {
    return Date.now() / 1000 + this.offset;
  }

  #connect() {
    this.#close();
    const source = new EventSource("/events");
    this.source = source;
    this.hasEvents = false;
    source.addEventListener("state", (event) => {
      this.hasEvents = true;
      this.#state(JSON.parse(event.data));
    });
    source.addEventListener("change", (event) => this.#change(JSON.parse(event.data)));
    source.onerror = () => this.#lost();
    this.#watch();
  }

  #close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  #watch() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#lost(), SILENT_MS);
  }

  /** Show the present state if the daemon answers, because it limits the number of streams. Then try again to follow it. */
  async #lost() {
    this.#close();
    const state = this.hasEvents ? null : await load("/status", ANSWER_MS).catch(() => null);
    if (document.hidden) return;
    if (state) {
      const mappings = Object.fromEntries(state.mappings.map((mapping) => [mapping.name, mapping]));
      this.#state({ ...state, mappings, now_unix: state.daemon.now_unix });
    } else {
      this.#setLink("gone");
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#connect(), RETRY_MS);
  }

  #setLink(link) {
    if (this.link === link) return;
    this.link = link;
    this.since = Date.now() / 1000;
    this.onLink(link);
  }

  #heard(now) {
    this.offset = now - Date.now() / 1000;
    this.#watch();
    this.#setLink("live");
  }

  #state(data) {
    const isNewVersion = this.daemon && this.daemon.release !== data.daemon.release;
    if (isNewVersion) location.reload();
    this.daemon = data.daemon;
    this.mappings = new Map(Object.entries(data.mappings));
    this.policies = data.policies;
    this.#heard(data.now_unix);
    this.onChange(null, []);
  }

  #change(data) {
    this.#heard(data.now_unix);
    for (const name of data.removed) this.mappings.delete(name);
    for (const [name, fields] of Object.entries(data.mappings)) {
      this.mappings.set(name, { ...this.mappings.get(name), ...fields });
    }
    this.policies = data.policies ?? this.policies;
    this.onChange(Object.keys(data.mappings), data.removed);
  }
}

/** Return the age in seconds of the oldest record that is not committed; null if it is not known. */
export function lagSeconds(mapping, now) {
  if (mapping.lag_offsets === 0) return 0;
  return mapping.lag_offsets === null || mapping.oldest_record_unix === null ? null : Math.max(0, now - mapping.oldest_record_unix);
}

/** Say how many records an open Kafka transaction has hidden for a minute or more; "" if there is none. */
export function hiddenText(mapping, now) {
  const seconds = mapping.hidden_offsets ? Math.floor(now - mapping.hidden_since_unix) : 0;
  return seconds < HIDDEN_SECONDS ? "" : `${plural(mapping.hidden_offsets, "offset")}, not part of the lag, behind a Kafka transaction that has been open for ${duration(seconds)}.`;
}

/** Return a document of the server. Throws if it does not answer with 200 in time. */
export async function load(path, milliseconds = 10000) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(milliseconds) });
  if (!answer.ok) throw Object.assign(new Error(`HTTP status ${answer.status}`), { status: answer.status });
  return answer.json();
}

/** Send a request of an operator, and return its answer. A refusal is an Error with the texts `where` and `hint`. */
export async function send(path, body, token, milliseconds) {
  const headers = { "content-type": "application/json", ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(milliseconds) });
  const reply = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(reply.error), { status: answer.status, where: reply.where, hint: reply.hint });
  return reply;
}
