// The view: asks the server what there is, keeps what the user chose, and hands both to the parts of the page.

import { get } from "./api.js";
import { Charts } from "./chart.js";
import { Cure } from "./cure.js";
import { el, setText, verdictIcon } from "./dom.js";
import { Findings } from "./findings.js";
import { RunList } from "./list.js";
import { followTheme } from "./theme.js";
import { Toolbar } from "./toolbar.js";
import { onUrl, readUrl, writeUrl } from "./url.js";

/** Milliseconds between two questions while runs are still being read or examined. */
const BUSY_MS = 400;
const LEAST_MS = 1000;
const ZOOM_MS = 150;
const MOST_COMPARED = 6;
/** Runs whose points are kept although they are not on the chart. */
const MOST_KEPT = 20;
const SMOOTH_MS = 120;

class View {
  constructor(root) {
    this.choice = { run: null, compare: [], axis: "step", scale: null, smoothing: 0, zoom: null };
    this.runs = new Map();
    this.state = { boot: "", version: -1, order: [], is_read: false };
    this.active = null;
    this.pinned = null;
    this.isToReveal = true;
    const link = { active: (id) => this.mark(id, this.pinned), pin: (id) => this.pin(id), zoom: (id) => this.zoomTo(id) };
    this.list = new RunList({ choose: (key) => this.choose(key), compare: (key) => this.compare(key) });
    this.charts = new Charts({ ...link, zoom: (range) => this.zoom(range), zoomTo: link.zoom });
    this.findings = new Findings({ ...link, fail: (error) => this.fail(error) });
    this.cure = new Cure();
    this.toolbar = new Toolbar({ set: (change) => this.set(change), compare: (key) => this.compare(key), reset: () => this.zoom(null) });
    this.tally = el("div", {});
    this.pace = el("span", {});
    this.skipped = el("details", { hidden: true }, el("summary", {}), el("ul", {}));
    this.status = el("div", { class: "status" }, this.tally, this.pace, this.skipped);
    this.banner = el("div", { class: "banner", role: "alert", hidden: true });
    this.sign = el("span", { class: "verdict" });
    this.name = el("h1", {});
    this.about = el("span", { class: "about" });
    this.story = el("p", { class: "headline" });
    this.warning = el("p", { class: "warning", hidden: true });
    this.blank = el("div", { class: "blank" }, el("p", {}, "Reading the logs…"));
    this.undrawn = el("p", { class: "quiet undrawn", hidden: true }, "The log holds no loss to draw.");
    this.detail = el(
      "main", { class: "detail", hidden: true },
      el("header", { class: "head" }, el("div", { class: "title" }, this.sign, this.name, this.about), this.story, this.warning),
      this.toolbar.element,
      this.charts.element,
      this.undrawn,
      el("div", { class: "below" }, this.findings.element, this.cure.element),
    );
    this.list.element.append(this.status);
    root.append(this.banner, el("div", { class: "view" }, this.list.element, this.blank, this.detail));
    document.addEventListener("keydown", (event) => this.onKey(event));
    document.addEventListener("visibilitychange", () => this.comeBack());
    // TensorBoard hides the frames of tabs that are not looked at
    this.isInView = true;
    new IntersectionObserver((entries) => {
      this.isInView = entries.at(-1).isIntersecting;
      this.comeBack();
    }).observe(document.documentElement);
    for (const kind of ["wheel", "pointerdown", "keydown"]) this.list.element.addEventListener(kind, () => (this.isToReveal = false), { passive: true });
    onUrl(() => this.followUrl());
    followTheme(() => this.draw());
    this.followUrl();
    this.poll();
  }

  /** Ask for news; the next question follows by itself. */
  async poll() {
    clearTimeout(this.timer);
    this.isAway = !this.isShown() && this.state.is_read;
    if (this.isAway) return;
    let wait = 5000;
    try {
      const watch = [this.choice.run, ...this.choice.compare].filter(Boolean);
      let told = await get("runs", { since: this.state.version, watch });
      // a server that was started anew counts from the beginning
      if (told.boot !== this.state.boot && this.state.version >= 0) told = await get("runs", { watch });
      this.take(told);
      await this.load();
      const isBusy = !told.is_read || told.n_pending > 0;
      wait = isBusy ? BUSY_MS : Math.max(told.interval_s * 1000, LEAST_MS);
      if (!told.interval_s && !isBusy) wait = null;
    } catch (error) {
      this.fail(error);
    }
    clearTimeout(this.timer);
    if (wait !== null) this.timer = setTimeout(() => this.poll(), wait);
  }

  isShown() {
    return !document.hidden && this.isInView;
  }

  /** Go on where the tab is looked at again. */
  comeBack() {
    if (!this.isAway || !this.isShown()) return;
    this.tellUrl();
    this.poll();
  }

  take(told) {
    if (told.boot !== this.state.boot) this.runs.clear();
    this.state = told;
    this.list.update(told);
    this.fail(told.failure ? { message: "Curve Doctor failed; TensorBoard itself is not concerned.", traceback: told.failure } : null, told.complaint);
    const busy = !told.is_read ? "reading…" : told.n_pending ? `examining, ${told.n_pending} to go…` : told.interval_s ? `live, every ${told.interval_s} s` : "";
    setText(this.tally, told.tally);
    setText(this.pace, busy);
    this.status.title = told.source;
    this.showSkipped(told.skipped);
    if (!told.order.length && told.is_read) this.showBlank(`No training curve in ${told.source} yet.`, told.skipped.length ? told.skipped.slice(0, 8).map(({ path, reason }) => `${path}: ${reason}`) : ["A run appears here as soon as it has logged a loss."]);
    if (this.list.chosen !== this.choice.run && told.order.includes(this.choice.run)) {
      this.list.choose(this.choice.run, this.choice.compare);
    }
    // rows change their places until all verdicts are there, or the user has taken the list in hand
    if (this.isToReveal) this.list.reveal();
    if (told.is_read && !told.n_pending) this.isToReveal = false;
    if (told.is_read) this.choice.compare = this.choice.compare.filter((key) => told.order.includes(key));
    const isKnown = told.order.includes(this.choice.run);
    if (!isKnown && told.is_read && this.choice.run !== null && told.order.length) this.choice.run = null;
    if (this.choice.run === null && told.order.length) {
      const first = this.list.rows.get(told.order[0]);
      // wait a moment for a verdict: the worst run comes first
      if (first.verdict !== null || told.is_read) this.choose(told.order[0], { byUser: false });
    }
  }

  /** What looks like a log but gave no run, and why. */
  showSkipped(skipped) {
    const lines = skipped.map(({ path, reason }) => `${path}: ${reason}`);
    const told = lines.join("\n");
    if (told === this.skippedTold) return;
    this.skippedTold = told;
    this.skipped.hidden = !lines.length;
    this.skipped.firstChild.textContent = `${lines.length} not read`;
    this.skipped.lastChild.replaceChildren(...lines.map((line) => el("li", {}, line)));
  }

  showBlank(text, lines) {
    this.blank.replaceChildren(el("p", {}, text), ...lines.map((line) => el("p", { class: "quiet" }, line)));
    this.blank.hidden = false;
    this.detail.hidden = true;
  }

  /** An error above all, or none. */
  fail(error, complaint = "") {
    this.banner.hidden = !error && !complaint;
    this.banner.classList.toggle("complaint", !error);
    if (!error) {
      setText(this.banner, complaint);
      return;
    }
    const message = error.message || String(error);
    if (this.banner.dataset.told === message && !this.banner.hidden && this.banner.firstChild) return;
    this.banner.dataset.told = message;
    this.banner.replaceChildren(el("strong", {}, message), error.traceback ? el("details", {}, el("summary", {}, "Details"), el("pre", {}, error.traceback)) : "");
  }

  /** Fetch what is new of the runs on the chart, then draw once. */
  async load() {
    const keys = [this.choice.run, ...this.choice.compare].filter((key) => this.list.rows.has(key));
    if (!keys.length) return;
    const wanted = { axis: this.choice.axis, smoothing: this.choice.smoothing || null, columns: this.charts.width() };
    if (this.choice.zoom) [wanted.from, wanted.to] = this.choice.zoom;
    const query = JSON.stringify(wanted);
    if (this.runs.size > MOST_KEPT) for (const key of this.runs.keys()) if (!keys.includes(key)) this.runs.delete(key);
    const turn = (this.turn = (this.turn ?? 0) + 1);
    await Promise.all(keys.map((key) => this.fetchRun(key, wanted, query)));
    if (turn === this.turn) this.draw();
  }

  async fetchRun(key, wanted, query) {
    const { version } = this.list.rows.get(key);
    const known = this.runs.get(key);
    if (known && known.version === version && known.query === query) return;
    const isSame = known && known.version === version;
    const [told, curve] = await Promise.all([isSame ? known.told : get("run", { run: key }), get("curve", { run: key, ...wanted })]);
    this.runs.set(key, { version: Math.min(told.version, curve.version), query, told, curve });
  }

  draw() {
    const chosen = this.runs.get(this.choice.run);
    if (!chosen) return;
    const { told, curve } = chosen;
    const isNew = this.detail.hidden;
    this.blank.hidden = true;
    this.detail.hidden = false;
    const verdict = told.report?.verdict ?? "PENDING";
    if (this.sign.dataset.verdict !== verdict) {
      this.sign.dataset.verdict = verdict;
      this.sign.replaceChildren(verdictIcon(verdict), told.report ? verdict : "EXAMINING");
    }
    setText(this.name, told.name);
    setText(this.about, told.about ?? "");
    setText(this.story, told.report?.headline ?? "The curve is shown; the examination is still going on.");
    const sampled = (told.report?.notes ?? []).filter(({ kind }) => kind === "sampled").map(({ text }) => text);
    this.warning.hidden = !sampled.length;
    setText(this.warning, sampled.join(" "));
    const runs = [this.choice.run, ...this.choice.compare]
      .map((key) => this.runs.get(key))
      .filter((run) => run && (run === chosen || run.curve.axis === curve.axis))
      .map((run) => ({ key: run.told.key, name: run.told.name, curve: run.curve, report: run.told.report, groups: run.told.groups }));
    const isLog = (this.choice.scale ?? (curve.panels[0]?.is_log ? "log" : "linear")) === "log";
    const main = curve.panels[0]?.series ?? [];
    this.toolbar.update({
      axis: curve.axis, axes: curve.axes, isLog, smoothing: this.choice.smoothing, isZoomed: this.choice.zoom !== null, runs,
      hidden: isLog ? main.reduce((n, series) => n + series.n_not_positive, 0) : 0,
    });
    if (main.length) this.charts.show({ runs, axis: curve.axis, isLog, zoom: this.choice.zoom, theme: document.documentElement.dataset.theme });
    const isDrawn = main.length > 0;
    this.charts.element.hidden = this.toolbar.element.hidden = !isDrawn;
    this.undrawn.hidden = isDrawn;
    if (told.report) {
      this.findings.update(told.key, told.groups);
      this.cure.update(told);
    }
    this.findings.element.hidden = this.cure.element.hidden = !told.report;
    if (isNew) this.charts.resize();
  }

  choose(key, { byUser = true } = {}) {
    if (!key) return;
    const isOther = key !== this.choice.run;
    this.choice.run = key;
    this.choice.compare = this.choice.compare.filter((one) => one !== key);
    if (isOther) Object.assign(this.choice, { zoom: null, scale: null });
    if (isOther) this.mark(null, null);
    this.afterChoice();
    if (byUser && isOther) this.detail.scrollTop = 0;
  }

  /** Lay a run over the chosen one, or take it away. */
  compare(key) {
    const { compare, run } = this.choice;
    if (key === run) return;
    this.choice.compare = compare.includes(key) ? compare.filter((one) => one !== key) : [...compare, key].slice(-MOST_COMPARED);
    this.afterChoice();
  }

  set(change) {
    const isOtherAxis = change.axis && change.axis !== this.choice.axis;
    Object.assign(this.choice, change);
    if (isOtherAxis) this.choice.zoom = null;
    clearTimeout(this.soon);
    if ("smoothing" in change) this.soon = setTimeout(() => this.afterChoice(), SMOOTH_MS);
    else this.afterChoice();
  }

  afterChoice() {
    this.list.choose(this.choice.run, this.choice.compare);
    this.tellUrl();
    this.load().catch((error) => this.fail(error));
  }

  tellUrl() {
    const { run, compare, axis, scale, smoothing } = this.choice;
    writeUrl({ run, compare, axis: axis === "step" ? null : axis, scale, smoothing: smoothing || null });
  }

  followUrl() {
    const told = readUrl();
    const axis = ["step", "epoch", "time"].includes(told.axis) ? told.axis : "step";
    const smoothing = Math.min(Math.max(Number(told.smoothing) || 0, 0), 0.99);
    const isOther = (told.run ?? null) !== this.choice.run;
    Object.assign(this.choice, { compare: told.compare.slice(0, MOST_COMPARED), axis, smoothing, scale: told.scale ?? null });
    if (told.run) this.choice.run = told.run;
    if (isOther) this.choice.zoom = null;
    if (!this.state.order.length) return;
    this.list.choose(this.choice.run, this.choice.compare);
    this.list.reveal();
    this.load().catch((error) => this.fail(error));
  }

  zoom(range) {
    if (range && !(range[1] > range[0])) return;
    this.choice.zoom = range;
    this.charts.zoom(range);
    clearTimeout(this.zooming);
    this.zooming = setTimeout(() => this.load().catch((error) => this.fail(error)), ZOOM_MS);
    this.toolbar.setZoomed(range !== null);
  }

  zoomTo(id) {
    const range = this.charts.rangeOf(id);
    if (range) this.zoom(range);
  }

  mark(active, pinned) {
    this.active = active;
    this.pinned = pinned;
    this.charts.mark(active, pinned);
    this.findings.mark(active, pinned);
  }

  pin(id) {
    this.mark(this.active, this.pinned === id ? null : id);
    if (this.pinned) this.findings.show(this.pinned);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches?.("input, textarea, select")) return;
    if (event.key === "/") {
      event.preventDefault();
      this.list.search.focus();
      this.list.search.select();
    } else if (event.key === "Escape") {
      if (this.pinned) this.mark(null, null);
      else if (this.choice.zoom) this.zoom(null);
    } else if (event.key === "l" && !this.detail.hidden) {
      this.toolbar.toggleScale();
    }
  }
}

function styled(name) {
  return new Promise((resolve) => {
    const link = el("link", { rel: "stylesheet", href: new URL(name, import.meta.url).href, onload: resolve, onerror: resolve });
    document.head.append(link);
  });
}

/** What TensorBoard calls once, in a frame of our own. */
export async function render() {
  document.documentElement.lang = "en";
  document.title = "Curve Doctor";
  await Promise.all([styled("./vendor/uPlot.min.css"), styled("./style.css")]);
  try {
    new View(document.body);
  } catch (error) {
    document.body.append(el("pre", { id: "failure" }, `Curve Doctor could not be shown. TensorBoard itself is not concerned.\n\n${error.stack ?? error}`));
  }
}
