// Charts as inline SVG: a line over the last minutes or hours, and stacked bars for the steps of a commit.

import { h, s, setText } from "./dom.js";
import { duration, milliseconds, time } from "./format.js";

const HEIGHT = 150;
const MARGIN = { left: 52, right: 10, top: 10, bottom: 22 };
// Values that are further apart than this are not connected by a line.
const BRIDGE_SECONDS = 120;
// Lengths of the axis of time in seconds, each with the number of its sections.
const LENGTHS = [[60, 4], [120, 4], [180, 3], [300, 5], [600, 5], [900, 3], [1800, 3], [3600, 4], [7200, 4], [10800, 3], [21600, 6]];
const LABEL_WIDTH = 76;

/** Ends of an axis in seconds, whose halves are whole minutes or hours. */
export const DURATIONS = [60, 120, 240, 600, 1200, 3600, 7200, 14400, 43200, 86400, 172800, 604800];

/**
 * A line chart whose axis of time is as long as the values need. `format` writes a value; `sparse` connects values across short gaps; with `lasting`, a
 * value is current until the next one. `tops` lists the ends of the axis from the least of them on.
 */
export class LineChart {
  constructor(title, format, { sparse = false, lasting = false, tops = [] } = {}) {
    this.title = title;
    this.tops = tops;
    this.lasting = lasting;
    this.format = format;
    this.sparse = sparse;
    this.values = [];
    [[this.length, this.sections]] = LENGTHS;
    this.cursor = null;
    this.readout = h("p", { class: "readout" });
    this.svg = s("svg", {
      role: "img", tabindex: "0", height: HEIGHT, width: "100%",
      onpointermove: (event) => this.#point(event), onpointerleave: () => this.#select(null),
      onkeydown: (event) => this.#key(event), onblur: () => this.#select(null),
    });
    this.node = h("figure", { class: "chart card" }, h("figcaption", {}, h("h3", {}, title), this.readout), this.svg);
    this.observer = new ResizeObserver(() => this.#draw());
    this.observer.observe(this.node);
  }

  close() {
    this.observer.disconnect();
  }

  /** Show values, oldest first; null where a value is not known. The last one belongs to the time `last`. */
  show(values, last, step) {
    [this.length, this.sections] = LENGTHS.find(([length]) => length >= (values.length - 1) * step) ?? LENGTHS.at(-1);
    Object.assign(this, { values, last, step });
    this.#draw();
  }

  get #width() {
    return Math.max(200, this.svg.clientWidth || 520);
  }

  #x(index) {
    const age = (this.values.length - 1 - index) * this.step;
    return MARGIN.left + (this.#width - MARGIN.left - MARGIN.right) * (1 - age / this.length);
  }

  #y(value) {
    return MARGIN.top + (HEIGHT - MARGIN.top - MARGIN.bottom) * (1 - value / this.top);
  }

  #draw() {
    const known = this.values.filter((value) => value !== null);
    this.top = niceTop(Math.max(0, ...known), this.tops);
    this.svg.setAttribute("viewBox", `0 0 ${this.#width} ${HEIGHT}`);
    this.svg.replaceChildren(...this.#grid(), ...this.#lines());
    this.mark = s("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, visibility: "hidden" });
    this.dot = s("circle", { class: "cursor-dot", r: 3.5, visibility: "hidden" });
    this.svg.append(this.mark, this.dot);
    if (!known.length) {
      this.svg.append(s("text", { class: "none", x: this.#width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "No values yet"));
    }
    this.#describe(known);
    this.#select(this.cursor);
  }

  #describe(known) {
    const current = this.values[this.#current()] ?? null;
    const text = known.length
      ? `now ${current === null ? "unknown" : this.format(current)}, least ${this.format(Math.min(...known))}, greatest ${this.format(Math.max(...known))}. Arrow keys read single values.`
      : "no values yet";
    this.svg.setAttribute("aria-label", `${this.title}, last ${duration(this.length)}: ${text}`);
  }

  #grid() {
    const right = this.#width - MARGIN.right;
    const rows = [0, 0.5, 1].flatMap((part) => {
      const y = this.#y(this.top * part);
      return [
        s("line", { class: part ? "grid" : "axis", x1: MARGIN.left, x2: right, y1: y, y2: y }),
        s("text", { class: "tick", x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, this.format(this.top * part)),
      ];
    });
    const section = (right - MARGIN.left) / this.sections;
    const every = divisors(this.sections).find((count) => count * section >= LABEL_WIDTH) ?? this.sections;
    const columns = Array.from({ length: this.sections / every + 1 }, (_, index) => {
      const age = this.length - (index * every * this.length) / this.sections;
      const anchor = age === 0 ? "end" : index === 0 ? "start" : "middle";
      return s("text", { class: "tick", x: MARGIN.left + index * every * section, y: HEIGHT - 5, "text-anchor": anchor }, age ? `−${duration(age)}` : "now");
    });
    return [...rows, ...columns];
  }

  #lines() {
    const made = [];
    for (const run of this.#runs()) {
      const line = run.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      if (run.length === 1 || (this.sparse && run.length < 60)) {
        made.push(...run.map(([x, y]) => s("circle", { class: "point", cx: x, cy: y, r: 1.8 })));
      }
      if (run.length > 1) {
        made.push(s("path", { class: "area", d: `${line}L${run.at(-1)[0].toFixed(1)} ${this.#y(0)}L${run[0][0].toFixed(1)} ${this.#y(0)}Z` }));
        made.push(s("path", { class: "line", d: line }));
      }
    }
    return made;
  }

  /** Return the known values as runs of points that a line connects. */
  #runs() {
    const runs = [];
    let before = null;
    const gap = this.sparse ? BRIDGE_SECONDS / this.step : 1;
    this.values.forEach((value, index) => {
      if (value === null) return;
      if (before === null || index - before > gap) runs.push([]);
      runs.at(-1).push([this.#x(index), this.#y(value)]);
      before = index;
    });
    return runs;
  }

  #point(event) {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const share = (x - MARGIN.left) / (this.#width - MARGIN.left - MARGIN.right);
    this.#select(Math.round(this.values.length - 1 - ((1 - share) * this.length) / this.step));
  }

  #key(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -Infinity, End: Infinity };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    this.#select(Math.max(0, Math.min(this.values.length - 1, (this.cursor ?? this.values.length - 1) + move)));
  }

  /** Return the index of the current value; -1 if it is not known. */
  #current() {
    const index = this.values.findLastIndex((value) => value !== null);
    const age = (this.values.length - 1 - index) * this.step;
    return this.lasting || age <= (this.sparse ? BRIDGE_SECONDS : 0) ? index : -1;
  }

  /** Show the value at an index, or the current one. */
  #select(index) {
    const isInside = index !== null && index >= 0 && index < this.values.length;
    this.cursor = isInside ? index : null;
    const shown = isInside ? index : this.#current();
    const value = shown < 0 ? null : this.values[shown] ?? null;
    const when = isInside ? `${time(this.last - (this.values.length - 1 - index) * this.step)}  ` : "";
    setText(this.readout, `${when}${value === null ? "–" : this.format(value)}`);
    if (!this.mark) return;
    this.mark.setAttribute("visibility", isInside ? "visible" : "hidden");
    this.dot.setAttribute("visibility", isInside && value !== null ? "visible" : "hidden");
    if (!isInside) return;
    this.mark.setAttribute("x1", this.#x(index));
    this.mark.setAttribute("x2", this.#x(index));
    this.dot.setAttribute("cx", this.#x(index));
    this.dot.setAttribute("cy", this.#y(value ?? 0));
  }
}

/** Return the divisors of a small number, the least first. */
function divisors(number) {
  return Array.from({ length: number }, (_, index) => index + 1).filter((count) => number % count === 0);
}

/** Return the least end of an axis that is not below `value`: one of `tops`, or 1, 2, 5, 10, 20, ...; 1 for 0. */
function niceTop(value, tops) {
  if (value <= 0) return 1;
  const listed = value > tops[0] / 2 ? tops.find((top) => top >= value) : undefined;
  if (listed) return listed;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * size).find((top) => top >= value);
}

/** Return a bar of the steps of a commit. `longest` is the duration in ms that fills the whole width. */
export function stepBar(steps, longest) {
  let at = 0;
  const label = Object.entries(steps).map(([step, ms]) => `${step} ${milliseconds(ms)}`).join(", ");
  const parts = Object.entries(steps).filter(([, ms]) => ms > 0).map(([step, ms]) => {
    const part = s("rect", { x: `${(100 * at) / longest}%`, width: `${(100 * ms) / longest}%`, height: "100%", "data-step": step }, s("title", {}, `${step}: ${milliseconds(ms)}`));
    at += ms;
    return part;
  });
  return s("svg", { class: "bar", role: "img", "aria-label": label, width: "100%", height: 12 }, ...parts);
}

/** Return a legend of steps. */
export function stepLegend(steps) {
  return h(
    "ul",
    { class: "legend", "aria-label": "Colours of the steps" },
    ...steps.map((step) => h("li", {}, s("svg", { width: 10, height: 10, "aria-hidden": "true" }, s("rect", { width: 10, height: 10, rx: 2, "data-step": step })), step)),
  );
}
