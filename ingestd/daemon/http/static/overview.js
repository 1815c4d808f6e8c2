// The overview: a summary and a table of all mappings, which can be filtered and sorted, and the replication policies.

import { h, named, setAttribute, setText } from "./dom.js";
import { ago, count, duration, magnitude, plural, rate } from "./format.js";
import { hiddenText, lagSeconds } from "./live.js";
import { Policies } from "./policies.js";
import { STATES, badge, setBadge, urgency } from "./states.js";

// Rows that are sorted by a value that changes all the time must not jump while a user reads them.
const SORT_MS = 5000;
// Each column: its title, how two mappings compare, and whether the first click sorts the greatest value first.
const COLUMNS = [
  { key: "name", title: "Mapping", value: (m) => m.name },
  { key: "state", title: "State", value: (m) => urgency(m.state) },
  { key: "lag", title: "Lag", value: (m) => m.lag_offsets ?? -1, isNumber: true },
  { key: "behind", title: "Behind", value: (m, now) => lagSeconds(m, now) ?? -1, isNumber: true },
  { key: "rate", title: "Records", value: (m) => m.records_per_second, isNumber: true },
  { key: "commit", title: "Last commit", value: (m) => m.last_commit?.committed_unix ?? 0, isNumber: true },
];
// The choices of a user survive a visit to the page of a mapping.
const choices = { text: "", state: "", key: "state", descending: false };

export class Overview {
  constructor(live) {
    this.live = live;
    this.rows = new Map();
    this.sortedAt = 0;
    this.figures = new Map();
    this.policies = new Policies();
    this.ingest = h("div", { class: "ingest" }, h("h1", { class: "hidden" }, "Mappings"), this.#summary(), this.#tools(), this.#table());
    this.node = h("div", { class: "overview" }, this.ingest, this.policies.node);
    this.update(null, []);
  }

  close() {}

  /** Show the mappings that changed, or all if `names` is null. */
  update(names, removed) {
    for (const name of names === null ? this.rows.keys() : removed) {
      if (!this.live.mappings.has(name)) this.#remove(name);
    }
    let hasNew = names === null;
    for (const name of names ?? this.live.mappings.keys()) {
      if (!this.rows.has(name)) {
        this.rows.set(name, new Row());
        hasNew = true;
      }
      hasNew = this.rows.get(name).show(this.live.mappings.get(name), this.live.now) || hasNew;
    }
    this.#showSummary();
    this.#showPolicies();
    if (hasNew || Date.now() - this.sortedAt > SORT_MS) this.#arrange();
  }

  /** Show the ages that grow with the clock. */
  tick() {
    for (const row of this.rows.values()) row.tick(this.live.now);
    this.policies.show(this.live.policies, this.live.now);
    this.#showSummary();
  }

  /** Show the policies; a daemon that only replicates shows nothing about mappings. */
  #showPolicies() {
    this.policies.show(this.live.policies, this.live.now);
    this.ingest.hidden = this.live.policies.length > 0 && this.live.mappings.size === 0;
  }

  #remove(name) {
    this.rows.get(name)?.node.remove();
    this.rows.delete(name);
  }

  #summary() {
    const tile = (key, title) => {
      const value = h("dd", {}, "–");
      const note = h("dd", { class: "note" });
      this.figures.set(key, { value, note });
      return h("div", { class: "tile", "data-figure": key }, h("dt", {}, title), value, note);
    };
    return h(
      "dl",
      { class: "tiles", "aria-label": "Summary of all mappings" },
      tile("mappings", "Mappings"),
      tile("rate", "Records"),
      tile("lag", "Lag"),
      tile("behind", "Furthest behind"),
    );
  }

  #showSummary() {
    const all = [...this.live.mappings.values()];
    const now = this.live.now;
    const set = (key, value, note, level) => {
      const figure = this.figures.get(key);
      setText(figure.value, value);
      setText(figure.note, note);
      setAttribute(figure.value.parentNode, "data-level", level ?? null);
    };
    const urgent = all.filter((m) => m.state === "failed" || m.state === "waiting");
    const failed = urgent.filter((m) => m.state === "failed").length;
    set(
      "mappings",
      count(all.length),
      urgent.length ? `${failed ? `${failed} failed` : ""}${failed && urgent.length > failed ? ", " : ""}${urgent.length > failed ? `${urgent.length - failed} waiting` : ""}` : "none failed or waiting",
      failed ? "bad" : urgent.length ? "warning" : null,
    );
    set("rate", rate(all.reduce((sum, m) => sum + m.records_per_second, 0)), "mean of the last minute");
    set("lag", magnitude(all.reduce((sum, m) => sum + m.lag_offsets, 0)), "offsets that are not committed");
    const last = all.filter((m) => m.lag_offsets).sort((a, b) => (lagSeconds(b, now) ?? -1) - (lagSeconds(a, now) ?? -1))[0];
    set("behind", last ? duration(lagSeconds(last, now)) : "0 s", last ? last.name : "all records are committed");
    this.#showCounts(all);
  }

  #tools() {
    this.search = h("input", {
      type: "search", id: "filter", placeholder: "Name, table, topic or error", autocomplete: "off", spellcheck: "false",
      oninput: (event) => { choices.text = event.target.value; this.#arrange(); },
    });
    this.search.value = choices.text;
    this.chips = new Map(["", ...STATES].map((state) => [state, this.#chip(state)]));
    this.sortMenu = h(
      "select",
      { id: "sort", onchange: (event) => { this.#sortBy(event.target.value, COLUMNS.find((c) => c.key === event.target.value).isNumber); } },
      ...COLUMNS.map((column) => h("option", { value: column.key }, column.title)),
    );
    return h(
      "div",
      { class: "tools", role: "search" },
      h("div", { class: "field" }, h("label", { for: "filter" }, "Filter"), this.search),
      h("div", { class: "chips", role: "group", "aria-label": "State" }, ...this.chips.values()),
      h("div", { class: "field sort" }, h("label", { for: "sort" }, "Sort by"), this.sortMenu),
    );
  }

  #chip(state) {
    const number = h("span", { class: "number" });
    const button = h(
      "button",
      {
        type: "button", class: "chip", "data-state": state || "all", "aria-pressed": "false",
        onclick: () => { choices.state = choices.state === state ? "" : state; this.#arrange(); },
      },
      state || "all", " ", number,
    );
    return button;
  }

  #showCounts(all) {
    const counts = new Map([["", all.length]]);
    for (const mapping of all) counts.set(mapping.state, (counts.get(mapping.state) ?? 0) + 1);
    for (const [state, chip] of this.chips) {
      setText(chip.querySelector(".number"), count(counts.get(state) ?? 0));
      chip.hidden = state !== "" && !counts.get(state) && choices.state !== state;
      setAttribute(chip, "aria-pressed", String(choices.state === state));
    }
  }

  #table() {
    this.headers = new Map();
    const heads = COLUMNS.map((column) => {
      const button = h("button", { type: "button", onclick: () => this.#toggle(column) }, column.title, h("span", { class: "arrow", "aria-hidden": "true" }));
      const head = h("th", { scope: "col", class: column.isNumber ? "number" : "" }, button);
      this.headers.set(column.key, head);
      return head;
    });
    this.body = h("tbody");
    this.empty = h("p", { class: "empty", hidden: true });
    this.shown = h("p", { class: "hidden", role: "status" });
    return h(
      "div",
      { class: "card" },
      named(h("table", { class: "mappings" }, h("caption", { class: "hidden" }, "Mappings; the buttons in the header sort the table"), h("thead", {}, h("tr", {}, ...heads)), this.body)),
      this.empty,
      this.shown,
    );
  }

  #toggle(column) {
    this.#sortBy(column.key, choices.key === column.key ? !choices.descending : Boolean(column.isNumber));
  }

  #sortBy(key, descending) {
    Object.assign(choices, { key, descending });
    this.#arrange();
  }

  /** Filter and sort the rows. Rows that are in place are not moved, so that the focus stays. */
  #arrange() {
    this.sortedAt = Date.now();
    const column = COLUMNS.find((one) => one.key === choices.key);
    const now = this.live.now;
    const sign = choices.descending ? -1 : 1;
    const text = choices.text.trim().toLowerCase();
    const visible = [...this.rows.values()].filter((row) => row.matches(text, choices.state));
    const compare = (a, b) => {
      const [left, right] = [column.value(a.mapping, now), column.value(b.mapping, now)];
      return left < right ? -sign : left > right ? sign : a.mapping.name.localeCompare(b.mapping.name);
    };
    visible.sort(compare);
    const wanted = new Set(visible);
    for (const row of this.rows.values()) if (!wanted.has(row)) row.node.remove();
    let at = this.body.firstElementChild;
    for (const row of visible) {
      if (row.node === at) at = at.nextElementSibling;
      else this.body.insertBefore(row.node, at);
    }
    this.#showChoices(visible.length);
  }

  #showChoices(shown) {
    for (const [key, head] of this.headers) {
      setAttribute(head, "aria-sort", key === choices.key ? (choices.descending ? "descending" : "ascending") : null);
    }
    this.sortMenu.value = choices.key;
    this.empty.hidden = shown > 0;
    setText(this.empty, this.rows.size ? "No mapping fits the filter." : "The daemon has no mappings yet.");
    setText(this.shown, choices.text || choices.state ? `${plural(shown, "mapping")} shown` : "");
    this.#showCounts([...this.live.mappings.values()]);
  }
}

/** One mapping of the table. */
class Row {
  constructor() {
    this.link = h("a", { class: "name" });
    this.path = h("span", { class: "path" });
    this.badge = badge("starting");
    this.lag = h("td", { class: "number", "data-title": "Lag" });
    this.behind = h("td", { class: "number", "data-title": "Behind" });
    this.rate = h("td", { class: "number", "data-title": "Records" });
    this.commit = h("td", { class: "number", "data-title": "Last commit" });
    this.error = h("span", { class: "error" });
    this.hint = h("span", { class: "hint" });
    this.problem = h("p", { class: "problem", hidden: true }, this.error, this.hint);
    this.open = h("span", { class: "error" });
    this.behindOpen = h("p", { class: "problem", hidden: true }, this.open);
    this.node = named(h(
      "tr",
      {},
      h("th", { scope: "row" }, this.link, this.path, this.problem, this.behindOpen),
      h("td", { class: "state", "data-title": "State" }, this.badge),
      this.lag, this.behind, this.rate, this.commit,
    ));
  }

  /** Show a mapping; return whether its state changed. */
  show(mapping, now) {
    const hasChanged = this.mapping?.state !== mapping.state;
    this.mapping = mapping;
    this.words = [mapping.name, mapping.table, ...mapping.topics, mapping.problem?.error ?? ""].join(" ").toLowerCase();
    setText(this.link, mapping.name);
    setAttribute(this.link, "href", `#/mappings/${encodeURIComponent(mapping.name)}`);
    setText(this.path, `${mapping.topics.join(", ")} → ${mapping.table}`);
    setBadge(this.badge, mapping.state);
    setAttribute(this.node, "data-state", mapping.state);
    setText(this.lag, count(mapping.lag_offsets));
    setText(this.rate, mapping.state === "standby" ? "–" : rate(mapping.records_per_second));
    this.problem.hidden = !mapping.problem;
    if (mapping.problem) {
      setText(this.error, `${mapping.problem.where ? `${mapping.problem.where}: ` : ""}${mapping.problem.error}`);
      setText(this.hint, mapping.problem.hint);
    }
    this.tick(now);
    return hasChanged;
  }

  tick(now) {
    const { mapping } = this;
    setText(this.behind, duration(lagSeconds(mapping, now)));
    setText(this.open, hiddenText(mapping, now));
    this.behindOpen.hidden = !this.open.textContent;
    setText(this.commit, ago(mapping.last_commit?.committed_unix, now));
  }

  matches(text, state) {
    return (!state || this.mapping.state === state) && this.words.includes(text);
  }
}
