// What the report says, put onto the charts: findings as letters and spans, NaN as hatched gaps, the best checkpoint, the stop.

import { arrange, el } from "./dom.js";
import { whole } from "./format.js";
import { colour } from "./theme.js";

/** Spans that are shaded without being pointed at: more of them would shade everything. */
const MOST_SHADED = 8;
const MOST_LANES = 5;
const LANE_HEIGHT = 20;
const LEAST_WIDTH = 20;
const LETTER_RADIUS = 8;

/** The findings of a report that have a place, with where they lie on the axis. */
export function spansOf(groups, places) {
  const spans = [];
  for (const group of groups) {
    if (!group.has_place) continue;
    group.findings.forEach((finding, i) => {
      const [from, to] = [places[finding.first_step], places[finding.last_step]];
      if (from === undefined || to === undefined) return;
      spans.push({ id: `${group.letter}:${i}`, group, finding, from, to });
    });
  }
  return spans;
}

function visible(u, from, to) {
  return to >= u.scales.x.min && from <= u.scales.x.max;
}

/** The canvas x of a place, kept inside the plot. */
function canvasX(u, x) {
  return Math.min(Math.max(u.valToPos(x, "x", true), u.bbox.left), u.bbox.left + u.bbox.width);
}

function clipped(u, paint) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  paint(ctx, bbox, window.devicePixelRatio || 1);
  ctx.restore();
}

/** Behind the curves: spans of findings, and where a metric is not finite. */
export function paintBehind(u, lines, spans, emphasis) {
  clipped(u, (ctx, bbox, dpr) => {
    const shaded = spans.filter(({ group }) => group.is_open && group.severity !== "info").slice(0, MOST_SHADED);
    for (const span of new Set([...shaded, ...spans.filter(({ id }) => emphasis.has(id))])) {
      if (!visible(u, span.from, span.to)) continue;
      const left = canvasX(u, span.from);
      const width = Math.max(canvasX(u, span.to) - left, 2 * dpr);
      const isActive = emphasis.has(span.id);
      ctx.globalAlpha = isActive ? 0.14 : 0.055;
      ctx.fillStyle = colour(span.group.severity);
      ctx.fillRect(left, bbox.top, width, bbox.height);
      if (!isActive) continue;
      ctx.globalAlpha = 0.9;
      ctx.fillRect(left, bbox.top, Math.max(1, dpr), bbox.height);
      ctx.fillRect(left + width - Math.max(1, dpr), bbox.top, Math.max(1, dpr), bbox.height);
    }
    for (const { gaps } of lines) for (const gap of gaps) paintGap(u, ctx, bbox, dpr, gap);
  });
}

function paintGap(u, ctx, bbox, dpr, gap) {
  if (!visible(u, gap.from, gap.to)) return;
  const centre = (canvasX(u, gap.from) + canvasX(u, gap.to)) / 2;
  const width = Math.max(canvasX(u, gap.to) - canvasX(u, gap.from), 4 * dpr);
  const left = centre - width / 2;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, bbox.top, width, bbox.height);
  ctx.clip();
  ctx.strokeStyle = colour("nan");
  ctx.globalAlpha = 0.28;
  ctx.lineWidth = dpr;
  ctx.beginPath();
  for (let x = left - bbox.height; x < left + width; x += 10 * dpr) {
    ctx.moveTo(x, bbox.top + bbox.height);
    ctx.lineTo(x + bbox.height, bbox.top);
  }
  ctx.stroke();
  ctx.restore();
}

/** Over the curves: crosses and a word where values are not finite, best checkpoint, stop, and a letter on the curve. */
export function paintFront(u, lines, spans, emphasis, report, places) {
  u.letters = [];
  clipped(u, (ctx, bbox, dpr) => {
    ctx.font = `${11 * dpr}px Roboto, system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    paintNan(u, ctx, bbox, dpr, lines);
    if (!report) return;
    const { best, stop } = report;
    const isLosses = lines.some((line) => line.panel === 0);
    if (best && places[best.step] !== undefined) {
      paintRule(u, ctx, bbox, dpr, places[best.step], "best", [2, 3], isLosses && `best ${whole(best.step)}`, 0);
      const at = pointOf(lines, best.metric, best.step);
      if (at) paintDiamond(ctx, u.valToPos(at.x, "x", true), u.valToPos(at.y, "y", true), 6 * dpr);
    }
    if (stop.stop && stop.step !== null && places[stop.step] !== undefined)
      paintRule(u, ctx, bbox, dpr, places[stop.step], "stop", [6, 3], isLosses && `would have stopped ${whole(stop.step)}`, 1);
    paintLetters(u, ctx, bbox, dpr, lines, spans, emphasis);
  });
}

function paintNan(u, ctx, bbox, dpr, lines) {
  let free = -Infinity;
  for (const line of lines) {
    for (const gap of line.gaps) {
      if (!visible(u, gap.from, gap.to)) continue;
      const [left, right] = [canvasX(u, gap.from), canvasX(u, gap.to)];
      ctx.strokeStyle = ctx.fillStyle = colour("nan");
      ctx.lineWidth = 1.6 * dpr;
      const y = bbox.top + bbox.height - 8 * dpr;
      const r = 3.2 * dpr;
      const step = 14 * dpr;
      ctx.beginPath();
      for (let x = left; x <= right + 0.5; x += step) {
        ctx.moveTo(x - r, y - r);
        ctx.lineTo(x + r, y + r);
        ctx.moveTo(x + r, y - r);
        ctx.lineTo(x - r, y + r);
      }
      ctx.stroke();
      const text = gap.n > 1 ? `${line.name} ${gap.what}, ${whole(gap.n)} points` : `${line.name} ${gap.what}`;
      const width = ctx.measureText(text).width;
      const x = Math.min(Math.max(left, bbox.left + 4 * dpr), bbox.left + bbox.width - width - 6 * dpr);
      if (x < free) continue;
      free = x + width + 12 * dpr;
      plate(ctx, dpr, x, y - 16 * dpr, width);
      ctx.fillStyle = colour("nan");
      ctx.fillText(text, x, y - 16 * dpr);
    }
  }
}

/** A bit of background behind a text, so that it reads over curves. */
function plate(ctx, dpr, x, y, width) {
  const kept = ctx.fillStyle;
  ctx.globalAlpha = 0.82;
  ctx.fillStyle = colour("surface");
  ctx.fillRect(x - 3 * dpr, y - 8 * dpr, width + 6 * dpr, 16 * dpr);
  ctx.globalAlpha = 1;
  ctx.fillStyle = kept;
}

function paintRule(u, ctx, bbox, dpr, place, name, dash, text, row) {
  if (!visible(u, place, place)) return;
  const x = u.valToPos(place, "x", true);
  ctx.strokeStyle = ctx.fillStyle = colour(name);
  ctx.lineWidth = 1.5 * dpr;
  ctx.setLineDash(dash.map((n) => n * dpr));
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.setLineDash([]);
  if (!text) return;
  const width = ctx.measureText(text).width;
  const isLeft = x + width + 10 * dpr > bbox.left + bbox.width;
  const at = isLeft ? x - width - 6 * dpr : x + 6 * dpr;
  const y = bbox.top + (11 + 17 * row) * dpr;
  plate(ctx, dpr, at, y, width);
  ctx.fillText(text, at, y);
}

function paintDiamond(ctx, x, y, r) {
  ctx.fillStyle = colour("best");
  ctx.strokeStyle = colour("surface");
  ctx.lineWidth = r / 4;
  ctx.beginPath();
  ctx.moveTo(x, y - r);
  ctx.lineTo(x + r, y);
  ctx.lineTo(x, y + r);
  ctx.lineTo(x - r, y);
  ctx.closePath();
  ctx.fill();
  ctx.stroke();
}

/** The drawn point of a metric nearest to a step that has a value. */
function pointOf(lines, metric, step) {
  const line = lines.find(({ name, isPrimary }) => isPrimary && name === metric);
  if (!line) return null;
  let found = null;
  line.step.forEach((s, i) => {
    if (line.y[i] !== null && (found === null || Math.abs(s - step) < Math.abs(line.step[found] - step))) found = i;
  });
  return found === null ? null : { x: line.x[found], y: line.y[found] };
}

function paintLetters(u, ctx, bbox, dpr, lines, spans, emphasis) {
  const r = LETTER_RADIUS * dpr;
  const taken = [];
  ctx.textAlign = "center";
  ctx.font = `600 ${11 * dpr}px Roboto, system-ui, sans-serif`;
  for (const span of spans) {
    if (!lines.some(({ name, isPrimary }) => isPrimary && name === span.finding.metric_shown) || !visible(u, span.from, span.from)) continue;
    const at = pointOf(lines, span.finding.metric_shown, span.finding.first_step);
    const x = u.valToPos(span.from, "x", true);
    let y = (at ? u.valToPos(at.y, "y", true) : bbox.top + bbox.height) - 16 * dpr;
    y = Math.min(Math.max(y, bbox.top + r + 38 * dpr), bbox.top + bbox.height - r - 2 * dpr);
    while (taken.some(([tx, ty]) => Math.abs(tx - x) < 2 * r && Math.abs(ty - y) < 2 * r) && y > bbox.top + r) y -= 2 * r;
    if (y <= bbox.top + r) continue;
    taken.push([x, y]);
    u.letters.push({ id: span.id, x: (x - bbox.left) / dpr, y: (y - bbox.top) / dpr });
    ctx.globalAlpha = span.group.is_open ? 1 : 0.55;
    ctx.fillStyle = colour(span.group.severity);
    ctx.beginPath();
    ctx.arc(x, y, emphasis.has(span.id) ? r * 1.3 : r, 0, 2 * Math.PI);
    ctx.fill();
    ctx.strokeStyle = colour("surface");
    ctx.lineWidth = 1.5 * dpr;
    ctx.stroke();
    ctx.fillStyle = colour("on-mark");
    ctx.fillText(span.group.letter, x, y + 0.5 * dpr);
    ctx.globalAlpha = 1;
  }
  ctx.textAlign = "left";
}

/** The letter of the last painting that lies at a point of the plot; null without one. */
export function letterAt(u, x, y) {
  return u.letters?.find((letter) => Math.hypot(letter.x - x, letter.y - y) <= LETTER_RADIUS + 2)?.id ?? null;
}

/** The strip below the losses: a button for each finding, as long as what it is about. */
export class Lanes {
  /** @param on `{ active(id | null), pin(id), zoom(id) }` */
  constructor(on) {
    this.on = on;
    this.buttons = new Map();
    this.more = el("span", { class: "lane-more" });
    this.element = el("div", { class: "lanes", role: "group", "aria-label": "Findings on the axis" });
  }

  update(u, spans, active, pinned) {
    const ends = [];
    const nodes = [];
    const left = u.over.offsetLeft;
    const width = u.over.clientWidth;
    let hidden = 0;
    for (const span of [...spans].sort((a, b) => a.from - b.from)) {
      if (!visible(u, span.from, span.to)) continue;
      const from = Math.max(u.valToPos(span.from, "x"), 0);
      const to = Math.max(Math.min(u.valToPos(span.to, "x"), width), from + LEAST_WIDTH);
      let lane = ends.findIndex((end) => end + 2 <= from);
      if (lane < 0) lane = ends.length;
      if (lane >= MOST_LANES) {
        hidden += 1;
        continue;
      }
      ends[lane] = to;
      nodes.push(this.place(span, left + from, to - from, lane, active, pinned));
    }
    const height = `${Math.max(ends.length, 0) * LANE_HEIGHT}px`;
    if (this.element.style.height !== height) this.element.style.height = height;
    if (hidden) {
      this.more.textContent = `${hidden} more in the list`;
      nodes.push(this.more);
    }
    arrange(this.element, nodes);
  }

  place(span, left, width, lane, active, pinned) {
    const { id, group, finding } = span;
    let button = this.buttons.get(id);
    if (!button) {
      button = el("button", {
        type: "button", class: "lane",
        onmouseenter: () => this.on.active(id), onmouseleave: () => this.on.active(null),
        onfocus: () => this.on.active(id), onblur: () => this.on.active(null),
        onclick: () => this.on.pin(id), ondblclick: () => this.on.zoom(id),
      }, el("b", {}), el("span", {}));
      this.buttons.set(id, button);
    }
    button.dataset.finding = id;
    button.dataset.severity = group.severity;
    button.dataset.open = String(group.is_open);
    button.dataset.first = finding.first_step;
    button.dataset.last = finding.last_step;
    button.ariaLabel = `${group.letter} ${group.severity} ${group.name}, ${finding.where}`;
    button.title = `${group.code} ${group.name}: ${finding.message}`;
    button.style.left = `${left}px`;
    button.style.width = `${width}px`;
    button.style.top = `${lane * LANE_HEIGHT}px`;
    button.classList.toggle("active", id === active);
    button.setAttribute("aria-pressed", String(id === pinned));
    button.firstChild.textContent = group.letter;
    button.lastChild.textContent = width > 90 ? group.name : "";
    return button;
  }
}
