// The replication policies of the metastore: a table that is absent if the daemon runs none.

import { h, named, setAttribute, setText } from "./dom.js";
import { ago, count, duration, size } from "./format.js";
import { badge, setBadge } from "./states.js";

export class Policies {
  constructor() {
    this.rows = new Map();
    this.body = h("tbody");
    const heads = ["Policy", "State", "Lag", "Behind", "Next", "Last execution"].map((title, index) =>
      h("th", { scope: "col", class: index > 1 ? "number" : "" }, title));
    this.node = h(
      "section",
      { class: "card policies", hidden: true },
      h("h2", {}, "Replication policies"),
      named(h("table", { class: "mappings" }, h("caption", { class: "hidden" }, "Replication policies"), h("thead", {}, h("tr", {}, ...heads)), this.body)),
    );
  }

  /** Show all policies, in the order of the daemon. */
  show(policies, now) {
    this.node.hidden = policies.length === 0;
    const names = new Set(policies.map((policy) => policy.name));
    for (const [name, row] of this.rows) {
      if (names.has(name)) continue;
      row.node.remove();
      this.rows.delete(name);
    }
    for (const policy of policies) {
      if (!this.rows.has(policy.name)) {
        const row = new Row();
        this.rows.set(policy.name, row);
        this.body.append(row.node);
      }
      this.rows.get(policy.name).show(policy, now);
    }
  }
}

/** One policy of the table. */
class Row {
  constructor() {
    this.name = h("span", { class: "name" });
    this.path = h("span", { class: "path" });
    this.badge = badge("idle");
    this.lag = h("td", { class: "number", "data-title": "Lag" });
    this.behind = h("td", { class: "number", "data-title": "Behind" });
    this.next = h("td", { class: "number", "data-title": "Next" });
    this.last = h("td", { class: "number", "data-title": "Last execution" });
    this.problem = h("p", { class: "problem", hidden: true });
    this.node = named(h(
      "tr",
      {},
      h("th", { scope: "row" }, this.name, this.path, this.problem),
      h("td", { class: "state", "data-title": "State" }, this.badge),
      this.lag, this.behind, this.next, this.last,
    ));
  }

  show(policy, now) {
    setText(this.name, policy.name);
    setText(this.path, `${(policy.statement ?? "").split(" WITH ")[0]} · ${policy.schedule}`);
    setBadge(this.badge, policy.state);
    setAttribute(this.node, "data-state", policy.state);
    setText(this.lag, policy.lag_events === null ? "–" : `${count(policy.lag_events)} events`);
    setText(this.behind, duration(policy.lag_seconds));
    setText(this.next, next(policy, now));
    setText(this.last, did(policy.last_execution, now));
    this.problem.hidden = !policy.problem;
    setText(this.problem, policy.problem ?? "");
  }
}

function next(policy, now) {
  if (!policy.enabled || policy.next_execution_unix === null) return "–";
  const left = policy.next_execution_unix - now;
  return left <= 0 ? "now" : `in ${duration(Math.ceil(left))}`;
}

/** What an execution did, such as "success, 12 files, 3 MiB, 5 s ago". */
function did(run, now) {
  if (run === null) return "–";
  const parts = [run.status.toLowerCase().replace("_", " ")];
  for (const [name, { done, known }] of Object.entries(run.counts)) {
    parts.push(name === "bytes" ? size(done) : `${done === known ? count(done) : `${count(done)} of ${count(known)}`} ${name}`);
  }
  if (run.reason) parts.push(run.reason);
  return `${parts.join(", ")}, ${ago(run.ended_unix ?? run.began_unix, now)}`;
}
