// What a mapping that does not run would make of the last records of its topics, when the user asks for it.

import { h, named } from "./dom.js";
import { count, plural, size } from "./format.js";
import { send } from "./live.js";

const ANSWER_MS = 600000;
const UNAUTHORIZED = 401;
// States in which the mapping writes nothing.
const STOPPED = ["failed", "stopped", "paused", "waiting"];

export class PreviewSection {
  constructor(path) {
    this.path = path;
    this.token = h("input", { type: "password", placeholder: "Token", "aria-label": "Token of the daemon", autocomplete: "off", hidden: true });
    this.button = h("button", { type: "submit", class: "more", "data-preview": "show" }, "Preview the last records");
    this.result = h("div", { "aria-live": "polite", "data-preview": "result" });
    const ask = (event) => {
      event.preventDefault();
      this.#ask();
    };
    const form = h("form", { class: "tools", onsubmit: ask }, this.button, this.token);
    this.node = h("section", { class: "card", hidden: true }, h("h2", {}, "Preview"), form, this.result);
  }

  /** Show the section if the mapping is in a state in which it writes nothing. */
  update(state) {
    this.node.hidden = !STOPPED.includes(state);
  }

  async #ask() {
    this.button.disabled = true;
    this.result.replaceChildren(h("p", { class: "empty" }, "Reading records …"));
    try {
      this.#show(await send(`${this.path}/preview`, {}, this.token.value, ANSWER_MS));
    } catch (error) {
      if (error.status === UNAUTHORIZED) this.token.hidden = false;
      this.result.replaceChildren(h("p", { class: "empty" }, [error.where, error.message].filter(Boolean).join(": ")), h("p", { class: "note" }, error.hint ?? ""));
    } finally {
      this.button.disabled = false;
    }
  }

  #show(preview) {
    const columns = preview.rows.length ? Object.keys(preview.rows[0].values) : [];
    const isPartitioned = preview.rows.some((row) => row.table_partition !== null);
    const isBucketed = preview.rows.some((row) => row.bucket !== null);
    const places = [...(isPartitioned ? ["Partition"] : []), ...(isBucketed ? ["Bucket"] : [])];
    const place = (row) => [...(isPartitioned ? [row.table_partition] : []), ...(isBucketed ? [count(row.bucket)] : [])];
    const rows = preview.rows.map((row) => [origin(row), ...place(row), ...columns.map((name) => row.values[name] ?? "NULL")]);
    const rejects = preview.rejects.map((reject) => [origin(reject), reject.column, reject.reason]);
    const estimate = preview.estimate;
    this.result.replaceChildren(
      ...(preview.statements.length ? [h("p", {}, "The mapping will first run, through the metastore:"), ...preview.statements.map((text) => h("pre", {}, `${text};`))] : []),
      ...(rows.length ? [table("Rows", ["Record", ...places, ...columns], rows)] : []),
      ...(rejects.length ? [table("Rejects", ["Record", "Column", "Reason"], rejects)] : []),
      ...(preview.unfilled.length ? [h("p", {}, `NULL in all rows, because no record has a field for them: ${preview.unfilled.join(", ")}`)] : []),
      ...(preview.unstored.length ? [h("p", {}, `Fields that are not stored, because they have no column: ${preview.unstored.join(", ")}`)] : []),
      h("p", {}, `${plural(preview.records, "record")}: ${plural(preview.rows.length, "row")}, ${plural(preview.rejects.length, "reject")}${preview.skipped ? `, ${plural(preview.skipped, "skipped tombstone")}` : ""}`),
      ...(estimate ? [h("p", { class: "note" }, `Estimate: a transaction of ${plural(estimate.records, "record")} writes ${size(estimate.bytes)} of ORC${isPartitioned ? ` to ${plural(estimate.partitions, "partition")}` : ""}`)] : []),
    );
  }
}

function origin(row) {
  return `${row.topic}[${row.partition}] ${count(row.offset)}`;
}

function table(caption, heads, rows) {
  const cells = (row) => row.map((text, index) => (index ? h("td", { "data-title": heads[index] }, text) : h("th", { scope: "row" }, text)));
  return h("div", { class: "scroll" }, named(h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, ...heads.map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, ...rows.map((row) => h("tr", {}, ...cells(row)))))));
}
