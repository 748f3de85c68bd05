// The charts of the chosen run, and of those that it is compared with: one axis, one cursor, one zoom.

import { el, setText } from "./dom.js";
import { amount, place } from "./format.js";
import { Lanes, paintBehind, paintFront, spansOf } from "./marks.js";
import { Panel } from "./panel.js";
import { colour, runColour } from "./theme.js";

const SMALL = 92;
const LEAST_MAIN = 250;
const MOST_MAIN = 430;
/** Air at the right end of the axis, as a share of it. */
const AIR = 0.012;

/** Value of a line at the point nearest to a place, the last one at infinity; undefined where the place is further than `air` beyond its ends. */
function valueAt(line, x, air) {
  const { x: xs, y } = line;
  const beyond = xs.length ? Math.max(x - xs[xs.length - 1], xs[0] - x) : 0;
  if (!xs.length || (Number.isFinite(x) && beyond > air)) return undefined;
  if (!Number.isFinite(x)) return { value: y.at(-1), step: line.step.at(-1), x: xs.at(-1) };
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  const at = Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  return { value: y[at], step: line.step[at], x: xs[at] };
}

export class Charts {
  /** @param on `{ zoom(range | null), active(id | null), pin(id), zoomTo(id) }` */
  constructor(on) {
    this.on = on;
    this.panels = [];
    this.spans = [];
    this.emphasis = new Set();
    this.legend = el("div", { class: "legend", "aria-live": "off" });
    this.stack = el("div", { class: "stack" });
    this.caption = el("p", { class: "caption", "aria-live": "polite" });
    this.lanes = new Lanes({ active: on.active, pin: on.pin, zoom: on.zoomTo });
    this.element = el("div", { class: "charts" }, this.legend, this.stack);
    new ResizeObserver(() => this.resize()).observe(this.stack);
    window.addEventListener("resize", () => this.resize());
  }

  /**
   * @param shown `{ runs: [{ key, name, curve, report, groups }], axis, isLog, zoom, theme }`, the chosen run first.
   */
  show(shown) {
    this.shown = shown;
    const [chosen] = shown.runs;
    this.report = chosen.report;
    this.places = chosen.curve.places;
    this.spans = spansOf(chosen.groups ?? [], this.places);
    for (const span of this.spans) span.finding.metric_shown = span.group.metric;
    const plan = this.plan(shown);
    const look = JSON.stringify([shown.theme, shown.axis, shown.isLog, plan.map(({ name, lines, isLog }) => [name, isLog, lines.map((l) => [l.label, l.colour, l.isRaw, l.dash])])]);
    if (look === this.look && this.panels.length) plan.forEach(({ lines }, i) => this.panels[i].setLines(lines, this.range()));
    else this.build(plan, look);
    this.plan_ = plan;
    this.placeLanes();
    this.readout(this.cursor);
  }

  /** The lines of every panel: the chosen run's panels, with the same metrics of the other runs in them. */
  plan({ runs }) {
    const isCompared = runs.length > 1;
    return runs[0].curve.panels.map((panel, p) => ({
      name: panel.name,
      isLog: panel.is_log,
      lines: runs.flatMap((run, r) => {
        const same = p === 0 ? run.curve.panels[0] : run.curve.panels.find(({ name }) => name === panel.name);
        return (same?.series ?? []).flatMap((series) => this.lines(series, run, r, p, isCompared));
      }),
    }));
  }

  lines(series, run, r, p, isCompared) {
    const isEval = series.role.startsWith("eval");
    const own = series.role === "other" && p > 0 ? "other" : series.role;
    const ink = isCompared ? runColour(r) : colour(own);
    const line = {
      ...series,
      panel: p,
      isPrimary: r === 0,
      label: isCompared ? `${run.name} · ${series.name}` : series.name,
      colour: ink,
      width: isEval ? 2 : 1.5,
      dash: isEval && isCompared ? [7, 4] : undefined,
      isEval,
    };
    if (!series.raw) return [line];
    const faint = { ...line, ...series.raw, step: series.raw.x, label: `${line.label} raw`, colour: `${ink}55`, width: 1, isRaw: true, gaps: [] };
    return [faint, line];
  }

  range() {
    if (this.shown.zoom) return this.shown.zoom;
    const ranges = this.shown.runs.map(({ curve }) => curve.range);
    const [low, high] = [Math.min(...ranges.map((r) => r[0])), Math.max(...ranges.map((r) => r[1]))];
    const air = (high - low || 1) * AIR;
    return [low - air, high + air];
  }

  build(plan, look) {
    for (const panel of this.panels) panel.destroy();
    this.look = look;
    this.titles = [];
    this.stack.replaceChildren();
    const { axis, isLog } = this.shown;
    this.panels = plan.map(({ name, lines, isLog: isOwnLog }, p) => {
      const title = el("div", { class: "panel-title" }, el("span", {}), el("b", {}));
      const box = el("div", { class: p === 0 ? "panel main" : "panel", "data-metric": name }, p > 0 && title);
      this.titles.push(title);
      this.stack.append(box);
      if (p === 0) this.stack.append(this.lanes.element, this.caption);
      const own = lines;
      return new Panel({
        element: box,
        lines: own,
        axis,
        isLog: p === 0 ? isLog : isOwnLog,
        isMain: p === 0,
        hasAxis: p === 0 || p === plan.length - 1,
        width: this.width(),
        height: this.height(p, plan.length),
        on: { ...this.on, cursor: (x) => this.readout(x) },
        behind: (u) => paintBehind(u, own, this.spans, this.emphasis),
        front: (u) => paintFront(u, own, this.spans, this.emphasis, this.report, this.places),
      });
    });
    for (const panel of this.panels) panel.setRange(this.range());
  }

  width() {
    return Math.max(this.stack.clientWidth, 300);
  }

  height(p, n) {
    if (p > 0) return SMALL + (p === n - 1 ? 22 : 0);
    return Math.round(Math.min(Math.max(window.innerHeight * 0.42, LEAST_MAIN), MOST_MAIN));
  }

  resize() {
    this.panels.forEach((panel, p) => panel.setSize(this.width(), this.height(p, this.panels.length)));
    this.placeLanes();
  }

  /** A new zoom, before finer points have come. */
  zoom(range) {
    this.shown.zoom = range;
    for (const panel of this.panels) panel.setRange(this.range());
    this.placeLanes();
  }

  mark(active, pinned) {
    this.active = active;
    this.pinned = pinned;
    this.emphasis = new Set([active, pinned].filter(Boolean));
    for (const panel of this.panels) panel.redraw();
    this.placeLanes();
  }

  placeLanes() {
    if (this.panels.length) this.lanes.update(this.panels[0].plot, this.spans, this.active, this.pinned);
    const span = this.spans.find(({ id }) => id === (this.active ?? this.pinned));
    this.caption.hidden = !this.spans.length;
    const hint = "Point at a finding to see where it lies, double click to zoom to it; drag over the chart to zoom.";
    setText(this.caption, span ? `${span.group.letter} ${span.group.name}, ${span.finding.where}: ${span.finding.message}` : hint);
    this.caption.classList.toggle("told", Boolean(span));
    this.caption.title = span ? span.finding.message : "";
  }

  /** Where a finding lies, with air around it, for a zoom to it. */
  rangeOf(id) {
    const span = this.spans.find((one) => one.id === id);
    if (!span) return null;
    const [low, high] = this.shown.runs[0].curve.range;
    const air = Math.max((span.to - span.from) * 0.3, (high - low) * 0.02);
    return [Math.max(span.from - air, low), Math.min(span.to + air, high)];
  }

  /** The values under the cursor; the last ones without it. */
  readout(x) {
    this.cursor = x;
    if (!this.plan_) return;
    const { axis } = this.shown;
    const [main, ...others] = this.plan_;
    const shown = main.lines.filter((line) => !line.isRaw);
    const isOver = x !== null && x !== undefined;
    const [from, to] = this.range();
    this.air = (to - from) * 0.03;
    const first = shown.length ? valueAt(shown[0], isOver ? x : Infinity, Infinity) : undefined;
    const where = !first ? "" : isOver ? (axis === "step" ? `step ${place(first.step, "step")}` : `${axis} ${place(first.x, axis)} · step ${place(first.step, "step")}`) : "last";
    if (this.legendOf !== this.look) {
      this.legendOf = this.look;
      this.values = shown.map(() => el("b", {}));
      this.where = el("span", { class: "where" });
      this.legend.replaceChildren(
        this.where,
        ...shown.map((line, i) => {
          const swatch = el("i", { class: line.isEval ? "swatch eval" : "swatch" });
          swatch.style.color = line.colour;
          return el("span", { class: "entry" }, swatch, el("span", { class: "label" }, line.label), this.values[i]);
        }),
      );
    }
    setText(this.where, where);
    shown.forEach((line, i) => setText(this.values[i], this.told(line, x, isOver)));
    others.forEach(({ name, lines, isLog }, i) => {
      const drawn = lines.filter((line) => !line.isRaw);
      const values = drawn.map((line) => this.told(line, x, isOver));
      const [label, told] = this.titles[i + 1].children;
      setText(label, `${name.replace(/^train\//, "")}${isLog ? ", log" : ""}`);
      setText(told, values.join(" · "));
    });
  }

  told(line, x, isOver) {
    const at = valueAt(line, isOver ? x : Infinity, this.air);
    if (at === undefined) return "–";
    if (at.value !== null) return amount(at.value);
    return line.gaps.find((gap) => gap.first_step <= at.step && at.step <= gap.last_step)?.what ?? "NaN";
  }
}
