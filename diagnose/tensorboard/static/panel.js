// One chart of the stack: uPlot with our axes, gaps that stay gaps, and a cursor that all charts share.

import { amount, duration, whole } from "./format.js";
import { letterAt } from "./marks.js";
import { colour } from "./theme.js";
import uPlot from "./vendor/uPlot.esm.js";

const GUTTER = 62;
const RIGHT = 14;
const SYNC = "curve-doctor";
const FONT = "11px Roboto, system-ui, sans-serif";
/** Points are drawn where there are no more of them than this; an evaluation is always a point. */
const MOST_POINTS = 50;
const MOST_EVAL_POINTS = 300;
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000, 2592000, 8640000];
const WHOLES = Array.from({ length: 15 }, (_, p) => [1, 2, 5].map((d) => d * 10 ** p)).flat();

/** Round numbers in a range, a multiple of 1, 2 or 5 apart. */
function linearTicks(low, high, n) {
  const rough = (high - low) / n;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const gap = [1, 2, 5, 10].find((d) => d * power >= rough) * power;
  const ticks = [];
  for (let k = Math.ceil(low / gap); k <= Math.floor(high / gap + 1e-9); k += 1) ticks.push(Number((k * gap).toPrecision(12)));
  return ticks;
}

function logTicks(low, high, n) {
  const decades = Math.log10(high / low);
  if (decades < 0.9) return linearTicks(low, high, n).filter((v) => v > 0);
  const digits = decades > 3 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1)
    for (const d of digits) {
      const v = Number(`${d}e${p}`);
      if (v >= low && v <= high) ticks.push(v);
    }
  const every = Math.max(1, Math.ceil(ticks.length / (n + 2)));
  return ticks.filter((_, i) => i % every === 0);
}

/** The range of an axis with a little air; what is on a logarithmic scale gets it in ratios. */
function yRange(low, high, isLog) {
  if (low === null || low === undefined || !Number.isFinite(low)) return isLog ? [0.1, 1] : [0, 1];
  if (isLog) {
    const air = low === high ? 2 : (high / low) ** 0.05;
    return [low / air, high * air];
  }
  const air = low === high ? Math.abs(low) / 2 || 0.5 : (high - low) * 0.06;
  return [low - air, high + air];
}

/** Nearest index at which a series has something to say: a value, or a NaN. */
function nearest(y, at) {
  for (let d = 0; d < y.length; d += 1) {
    if (y[at - d] !== undefined && at - d >= 0) return at - d;
    if (y[at + d] !== undefined && at + d < y.length) return at + d;
  }
  return at;
}

/** Points to draw: all of a short or an evaluated series, else those that no line reaches. */
function drawnPoints(line, y) {
  const own = [];
  for (let i = 0; i < y.length; i += 1) if (y[i] !== undefined) own.push(i);
  const isShort = !line.isRaw && own.length <= (line.isEval ? MOST_EVAL_POINTS : MOST_POINTS);
  const isGap = (k) => k < 0 || k >= own.length || y[own[k]] === null;
  return own.filter((i, k) => y[i] !== null && (isShort || (isGap(k - 1) && isGap(k + 1))));
}

export class Panel {
  /**
   * @param options `{ lines, axis, isLog, isMain, hasAxis, width, height, on, behind, front }`; a line is
   *   `{ name, label, x, y, colour, width, dash, isEval, isRaw }`.
   */
  constructor(options) {
    this.options = options;
    const { axis, isLog, isMain, hasAxis, lines } = options;
    const grid = { stroke: colour("grid"), width: 1 };
    const ticks = { show: false };
    const text = { stroke: colour("faint"), font: FONT, grid, ticks };
    this.plot = new uPlot(
      {
        width: options.width,
        height: options.height,
        padding: [isMain ? 8 : 6, RIGHT, hasAxis ? 0 : 4, 0],
        legend: { show: false },
        cursor: {
          y: false,
          drag: { x: true, y: false, setScale: false, dist: 4 },
          sync: { key: SYNC, setSeries: false, scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
          points: { size: 7, width: 1.5, stroke: () => colour("surface"), fill: (u, i) => lines[i - 1].colour },
          dataIdx: (u, i, at) => (i === 0 ? at : nearest(u.data[i], at)),
          bind: { dblclick: () => () => (options.on.zoom(null), null) },
        },
        scales: {
          x: { time: false, auto: false },
          y: { distr: isLog ? 3 : 1, range: (u, low, high) => yRange(low, high, isLog) },
        },
        axes: [
          {
            ...text,
            show: true,
            size: hasAxis ? 26 : 0,
            gap: 6,
            space: 70,
            ...(axis === "time" ? { incrs: SECONDS } : axis === "step" ? { incrs: WHOLES } : {}),
            values: hasAxis ? (u, splits) => splits.map((v) => (axis === "time" ? duration(v) : axis === "step" ? whole(v) : amount(v))) : () => [],
          },
          {
            ...text,
            size: GUTTER,
            gap: 8,
            splits: (u, i, low, high) => (isLog ? logTicks : linearTicks)(low, high, Math.max(2, Math.floor(u.bbox.height / (window.devicePixelRatio || 1) / (isMain ? 46 : 24)))),
            filter: (u, splits) => splits,
            values: (u, splits) => splits.map(amount),
          },
        ],
        series: [
          {},
          ...lines.map((line) => ({
            label: line.label,
            stroke: line.colour,
            width: line.width,
            dash: line.dash,
            spanGaps: false,
            points: { show: true, size: line.isEval ? 6 : 4, width: 1, stroke: line.colour, fill: line.isEval ? colour("surface") : line.colour, filter: (u, i) => drawnPoints(lines[i - 1], u.data[i]) },
          })),
        ],
        hooks: {
          setSelect: [
            (u) => {
              if (u.select.width < 4) return;
              const range = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              options.on.zoom(range);
            },
          ],
          setCursor: [(u) => isMain && options.on.cursor(u.cursor.left < 0 ? null : u.posToVal(u.cursor.left, "x"))],
          drawClear: [(u) => options.behind(u)],
          draw: [(u) => options.front(u)],
        },
      },
      this.data(lines),
      options.element,
    );
    const { over } = this.plot;
    let under = null;
    over.addEventListener("mousemove", (event) => {
      const id = letterAt(this.plot, event.offsetX, event.offsetY);
      if (id === under) return;
      under = id;
      over.style.cursor = id ? "pointer" : "";
      options.on.active(id);
    });
    over.addEventListener("click", () => under && options.on.pin(under));
  }

  data(lines) {
    const isLog = this.options.isLog;
    const tables = lines.map(({ x, y }) => [x, isLog ? y.map((v) => (v !== null && v <= 0 ? null : v)) : y]);
    return tables.length ? uPlot.join(tables) : [[]];
  }

  /** New points of the same lines; the zoom is the caller's. */
  setLines(lines, range) {
    this.options.lines.splice(0, this.options.lines.length, ...lines);
    this.plot.batch(() => {
      this.plot.setData(this.data(lines), false);
      this.setRange(range);
    });
    // the points under a resting cursor are others now
    const { left, top } = this.plot.cursor;
    if (left >= 0) this.plot.setCursor({ left, top }, false);
  }

  setRange([min, max]) {
    this.plot.setScale("x", { min, max });
  }

  redraw() {
    this.plot.redraw(false, false);
  }

  setSize(width, height) {
    if (this.plot.width !== width || this.plot.height !== height) this.plot.setSize({ width, height });
  }

  destroy() {
    this.plot.destroy();
  }
}
