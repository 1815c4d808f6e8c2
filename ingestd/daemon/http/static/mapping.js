// The page of one mapping: state, charts of the last hours, the last commits, and the partitions of Kafka and Hive.

import { DURATIONS, LineChart, stepBar, stepLegend } from "./charts.js";
import { h, named, setAttribute, setText } from "./dom.js";
import { ago, count, dateTime, duration, magnitude, milliseconds, plural, rate, size, time } from "./format.js";
import { hiddenText, lagSeconds, load } from "./live.js";
import { PreviewSection } from "./preview.js";
import { badge, setBadge } from "./states.js";

const HISTORY_MS = 10000;
const DETAILS_MS = 2000;
const FEW_COMMITS = 15;
const SOME_PARTITIONS = 100;
// What the charts can show at most, by the name that the server knows.
const SPANS = { "15m": "15 min", "1h": "1 h", "6h": "6 h" };
// The choice of a user survives a visit to another page.
const choices = { span: "1h" };

export class MappingPage {
  constructor(live, name) {
    this.live = live;
    this.name = name;
    this.path = `/mappings/${encodeURIComponent(name)}`;
    this.isAll = false;
    this.open = new Set();
    this.charts = [
      new LineChart("Records per second", magnitude),
      new LineChart("Lag, offsets", magnitude),
      new LineChart("Lag, time", duration, { sparse: true, tops: DURATIONS }),
      new LineChart("Latency, record to commit", duration, { sparse: true, lasting: true, tops: DURATIONS }),
    ];
    this.node = h("div", { class: "mapping" }, this.#head(), this.#body());
    this.update(null, []);
    this.#loadHistory();
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.historyTimer);
    clearTimeout(this.detailsTimer);
    for (const chart of this.charts) chart.close();
  }

  /** Show what changed. */
  update(names, removed) {
    const mapping = this.live.mappings.get(this.name);
    this.missing.hidden = Boolean(mapping);
    this.content.hidden = !mapping;
    if (!mapping || removed.includes(this.name)) return;
    if (names !== null && !names.includes(this.name)) return;
    setBadge(this.badge, mapping.state);
    setText(this.table, `${mapping.topics.join(", ")} → ${mapping.table}`);
    setText(this.owner, mapping.is_owner ? "this daemon" : mapping.owner || "–");
    this.#showProblem(mapping.problem);
    this.preview.update(mapping.state);
    this.tick();
    this.#loadDetailsSoon();
  }

  /** Show the ages that grow with the clock. */
  tick() {
    const mapping = this.live.mappings.get(this.name);
    if (!mapping) return;
    const now = this.live.now;
    const isStandby = mapping.state === "standby";
    const figures = {
      lag: [count(mapping.lag_offsets), "offsets"],
      behind: [duration(lagSeconds(mapping, now)), "age of the oldest record to commit"],
      rate: [isStandby ? "–" : rate(mapping.records_per_second), "mean of the last minute"],
      commit: [ago(mapping.last_commit?.committed_unix, now), mapping.last_commit ? `${plural(mapping.last_commit.rows, "row")} in ${milliseconds(mapping.last_commit.duration_ms)}` : "none by this process"],
      total: [magnitude(mapping.totals.rows), `in ${plural(mapping.totals.commits, "commit")}, ${size(mapping.totals.size_bytes)}`],
      trouble: [count(sum(mapping.totals.retries)), `${plural(mapping.totals.aborts, "abort")}, ${plural(mapping.totals.takeovers, "takeover")}`],
    };
    for (const [key, [value, note]] of Object.entries(figures)) {
      setText(this.figures.get(key).value, value);
      setText(this.figures.get(key).note, note);
    }
    setText(this.pace, [hiddenText(mapping, now), pace(mapping.pacing), compaction(mapping.compaction)].filter(Boolean).join(" "));
    this.pace.hidden = !this.pace.textContent;
    setText(this.since, ` for ${duration(Math.max(0, Math.floor(now - mapping.state_since_unix)))}`);
    if (mapping.problem) this.#showRetry(mapping.problem, now);
  }

  #head() {
    this.badge = badge("starting");
    this.since = h("span", { class: "since" });
    this.table = h("p", { class: "path" });
    this.owner = h("span");
    return h(
      "header",
      { class: "page-head" },
      h("nav", { "aria-label": "Path" }, h("a", { href: "#/" }, "All mappings")),
      h("h1", {}, this.name),
      h("p", { class: "state" }, this.badge, this.since, h("span", { class: "owner" }, "Owner: ", this.owner)),
      this.table,
    );
  }

  #body() {
    this.missing = h("p", { class: "empty card", hidden: true }, "The daemon has no mapping with this name.");
    this.error = h("strong");
    this.hint = h("p");
    this.retry = h("p", { class: "retry" });
    this.problem = h("section", { class: "problem card", "aria-label": "Problem", hidden: true }, this.error, this.hint, this.retry);
    this.commits = h("div");
    this.kafka = h("div");
    this.hive = h("div");
    this.content = h(
      "div",
      {},
      this.problem,
      (this.preview = new PreviewSection(this.path)).node,
      this.#figures(),
      (this.pace = h("p", { class: "pace card", hidden: true })),
      this.#spans(),
      h("section", { class: "charts", "aria-label": "Charts" }, ...this.charts.map((chart) => chart.node)),
      section("Last commits", this.commits),
      h("div", { class: "two" }, section("Kafka partitions", this.kafka), section("Recently written Hive partitions", this.hive)),
    );
    return h("div", {}, this.missing, this.content);
  }

  #spans() {
    const choose = (span) => {
      choices.span = span;
      this.#showSpan();
      this.#loadHistory();
    };
    const chip = ([span, text]) => h("button", { type: "button", class: "chip", "data-span": span, onclick: () => choose(span) }, text);
    this.spans = h("div", { class: "chips spans", role: "group", "aria-label": "Time that the charts show" }, ...Object.entries(SPANS).map(chip));
    this.#showSpan();
    return this.spans;
  }

  #showSpan() {
    for (const chip of this.spans.children) setAttribute(chip, "aria-pressed", String(chip.dataset.span === choices.span));
  }

  #figures() {
    this.figures = new Map();
    const titles = { lag: "Lag", behind: "Behind", rate: "Records", commit: "Last commit", total: "Rows since start", trouble: "Retries since start" };
    const tiles = Object.entries(titles).map(([key, title]) => {
      const figure = { value: h("dd", {}, "–"), note: h("dd", { class: "note" }) };
      this.figures.set(key, figure);
      return h("div", { class: "tile", "data-figure": key }, h("dt", {}, title), figure.value, figure.note);
    });
    return h("dl", { class: "tiles six" }, ...tiles);
  }

  #showProblem(problem) {
    this.problem.hidden = !problem;
    if (!problem) return;
    setText(this.error, `${problem.where ? `${problem.where}: ` : ""}${problem.error}`);
    setText(this.hint, problem.hint ? `How to fix it: ${problem.hint}` : "");
    setAttribute(this.problem, "data-level", problem.retry_in_seconds === null ? "bad" : "warning");
    this.#showRetry(problem, this.live.now);
  }

  #showRetry(problem, now) {
    const since = `${problem.reason} since ${dateTime(problem.since_unix)}, ${ago(problem.since_unix, now)}.`;
    const next = problem.retry_in_seconds === null ? " The mapping has ended and does not retry." : ` The last wait before a retry was ${duration(problem.retry_in_seconds)}.`;
    setText(this.retry, since + next);
  }

  async #loadHistory() {
    clearTimeout(this.historyTimer);
    try {
      if (!this.live.mappings.has(this.name)) throw new Error("no mapping has this name");
      const { span } = choices;
      const recorded = await load(`${this.path}/history?span=${span}`);
      if (this.isClosed || span !== choices.span) return;
      const series = [recorded.records_per_second, recorded.lag_offsets, recorded.lag_seconds, recorded.latency_seconds];
      this.charts.forEach((chart, index) => chart.show(series[index], recorded.last_unix, recorded.step_seconds));
    } catch {
      // The page already shows an outage or a missing mapping, and the next attempt follows.
    }
    if (!this.isClosed) this.historyTimer = setTimeout(() => { this.#loadHistory(); this.#loadDetailsSoon(); }, HISTORY_MS);
  }

  /** Load the details now, or two seconds after the last time. */
  #loadDetailsSoon() {
    if (this.detailsTimer) return;
    const wait = Math.max(0, (this.loadedAt ?? 0) + DETAILS_MS - Date.now());
    this.detailsTimer = setTimeout(() => this.#loadDetails(), wait);
  }

  async #loadDetails() {
    this.loadedAt = Date.now();
    try {
      const [details, { commits }] = await Promise.all([load(this.path), load(`${this.path}/commits`)]);
      if (this.isClosed) return;
      this.#showCommits(commits);
      this.#showKafka(details.partitions);
      this.#showHive(details.hive_partitions);
    } catch {
      // As above.
    }
    this.detailsTimer = null;
  }

  #showCommits(commits) {
    this.lastCommits = commits;
    if (!commits.length) {
      this.commits.replaceChildren(h("p", { class: "empty" }, "This process has not committed a transaction of this mapping yet."));
      return;
    }
    const shown = this.isAll ? commits : commits.slice(0, FEW_COMMITS);
    const longest = Math.max(1, ...shown.map((commit) => commit.duration_ms));
    const used = [...new Set(shown.flatMap((commit) => Object.keys(commit.steps_ms)))];
    const heads = [["Committed"], ["Transaction", true], ["Rows", true], ["Size", true], ["Offset ranges"], ["Time per step"], ["", true]];
    const focused = document.activeElement?.dataset.commit;
    this.commits.replaceChildren(
      stepLegend(used),
      table("Last commits", heads, shown.flatMap((commit) => this.#commitRows(commit, longest)), "commits"),
      ...(commits.length > FEW_COMMITS ? [this.#moreButton(commits.length)] : []),
    );
    if (focused) this.commits.querySelector(`[data-commit="${focused}"]`)?.focus({ preventScroll: true });
  }

  #moreButton(number) {
    const toggle = () => { this.isAll = !this.isAll; this.#showCommits(this.lastCommits); };
    return h("button", { type: "button", class: "more", "data-commit": "more", onclick: toggle }, this.isAll ? "Show fewer" : `Show all ${number}`);
  }

  #commitRows(commit, longest) {
    const isOpen = this.open.has(commit.txn);
    const toggle = () => {
      if (!this.open.delete(commit.txn)) this.open.add(commit.txn);
      this.#showCommits(this.lastCommits);
    };
    const more = commit.range_count > 1 ? ` + ${count(commit.range_count - 1)} more` : "";
    const button = h("button", { type: "button", class: "expand", "data-commit": commit.txn, "aria-expanded": String(isOpen), "aria-label": `Details of transaction ${commit.txn}`, onclick: toggle });
    const row = h(
      "tr",
      {},
      h("th", { scope: "row", title: dateTime(commit.committed_unix) }, time(commit.committed_unix)),
      cell("Transaction", String(commit.txn), true),
      cell("Rows", count(commit.rows), true),
      cell("Size", size(commit.size_bytes), true),
      h("td", { "data-title": "Offset ranges", class: "ranges" }, commit.ranges.length ? commit.ranges[0] : "no records", h("span", { class: "note" }, more)),
      h("td", { "data-title": "Time per step", class: "steps" }, h("div", { class: "bar-cell" }, stepBar(commit.steps_ms, longest), h("span", { class: "total" }, milliseconds(commit.duration_ms)))),
      h("td", { class: "number toggle" }, button),
    );
    return isOpen ? [row, this.#commitDetails(commit)] : [row];
  }

  #commitDetails(commit) {
    const steps = Object.entries(commit.steps_ms).map(([step, ms]) => h("div", {}, h("dt", {}, step), h("dd", {}, milliseconds(ms))));
    const list = (title, names, number) => h(
      "div",
      {},
      h("h4", {}, `${title} (${count(number)})`),
      h("ul", {}, ...names.map((name) => h("li", {}, name)), ...(number > names.length ? [h("li", { class: "note" }, `and ${count(number - names.length)} more`)] : [])),
    );
    const latency = commit.oldest_record_unix === null ? "" : `Oldest record ${duration(Math.max(0, commit.committed_unix - commit.oldest_record_unix))} before the commit. `;
    return h(
      "tr",
      { class: "details" },
      h(
        "td",
        { colspan: 7 },
        h("p", {}, `${latency}Write id ${commit.write_id}, ${plural(commit.records, "record")}, ${plural(commit.files, "file")}${commit.skipped ? `, ${plural(commit.skipped, "tombstone")} skipped` : ""}${commit.rejects ? `, ${plural(commit.rejects, "reject")} skipped` : ""}${commit.dead_letters ? `, ${plural(commit.dead_letters, "dead letter")}` : ""}.`),
        h("div", { class: "lists" }, h("div", {}, h("h4", {}, "Steps"), h("dl", { class: "step-list" }, ...steps)), list("Offset ranges", commit.ranges, commit.range_count), list("Hive partitions", commit.hive_partitions, commit.hive_partition_count)),
      ),
    );
  }

  #showKafka(partitions) {
    if (!partitions.length) {
      this.kafka.replaceChildren(h("p", { class: "empty" }, "Not known yet."));
      return;
    }
    const isHidden = partitions.some((part) => part.hidden_offsets);
    const rows = partitions.slice(0, SOME_PARTITIONS).map((part) => h(
      "tr",
      {},
      h("th", { scope: "row" }, `${part.topic} [${part.partition}]`),
      cell("Position", count(part.position), true),
      cell("End", count(part.end), true),
      cell("Lag", count(part.lag_offsets), true),
      ...(isHidden ? [cell("Hidden", count(part.hidden_offsets), true)] : []),
    ));
    const heads = [["Partition"], ["Position", true], ["End", true], ["Lag", true], ...(isHidden ? [["Hidden", true]] : [])];
    const rest = partitions.length - rows.length;
    this.kafka.replaceChildren(table("Kafka partitions", heads, rows), ...(rest ? [h("p", { class: "note" }, `and ${count(rest)} more in ${this.path}`)] : []));
  }

  #showHive(partitions) {
    if (!partitions.length) {
      this.hive.replaceChildren(h("p", { class: "empty" }, "None in the last commits, or the table is not partitioned."));
      return;
    }
    const rows = partitions.slice(0, SOME_PARTITIONS).map((part) => h(
      "tr",
      {},
      h("th", { scope: "row" }, part.name),
      cell("Commits", count(part.commits), true),
      h("td", { class: "number", "data-title": "Last commit", title: dateTime(part.last_commit_unix) }, time(part.last_commit_unix)),
    ));
    this.hive.replaceChildren(table("Hive partitions", [["Partition"], ["Commits", true], ["Last commit", true]], rows));
  }
}

/** Return a sentence if commits are less frequent than configured. */
function pace(pacing) {
  if (!pacing || pacing.factor <= 1) return "";
  const why = pacing.reason === "deltas" ? `${plural(pacing.deltas, "delta")} in a partition` : `the metastore takes ${duration(pacing.metastore_seconds)} per transaction`;
  return `Commits every ${duration(pacing.interval_seconds)} instead of ${duration(pacing.interval_seconds / pacing.factor)}: ${why}.`;
}

/** Return a sentence if compaction does not work. */
function compaction(status) {
  return status?.problem ? `Compaction: ${status.problem}` : "";
}

function section(title, content) {
  return h("section", { class: "card" }, h("h2", {}, title), content);
}

function cell(title, text, isNumber) {
  return h("td", { class: isNumber ? "number" : "", "data-title": title }, text);
}

function table(caption, heads, rows, kind = "") {
  const cells = heads.map(([title, isNumber]) => (title ? h("th", { scope: "col", class: isNumber ? "number" : "" }, title) : h("td", { class: "number" }, h("span", { class: "hidden" }, "Details"))));
  return h("div", { class: "scroll" }, named(h("table", { class: kind }, h("caption", { class: "hidden" }, caption), h("thead", {}, h("tr", {}, ...cells)), h("tbody", {}, ...rows))));
}

function sum(retries) {
  return Object.values(retries).reduce((total, number) => total + number, 0);
}
