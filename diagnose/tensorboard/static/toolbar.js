// How the curves are shown: axis, scale, smoothing, zoom, and which runs are laid over each other.

import { el, setText } from "./dom.js";
import { whole } from "./format.js";

const AXES = { step: "Step", epoch: "Epoch", time: "Time" };
const UNKNOWN = { epoch: "the log has no epochs", time: "the log does not tell when its steps were logged" };
const MOST_SMOOTHING = 0.99;

function segments(label, values, on) {
  const buttons = new Map(Object.entries(values).map(([value, text]) => [value, el("button", { type: "button", "aria-pressed": "false", onclick: () => on(value) }, text)]));
  return { element: el("div", { class: "segments", role: "group", "aria-label": label }, ...buttons.values()), buttons };
}

export class Toolbar {
  /** @param on `{ set(change), compare(key), reset() }` */
  constructor(on) {
    this.on = on;
    this.axis = segments("Horizontal axis", AXES, (axis) => on.set({ axis }));
    this.scale = segments("Vertical scale", { linear: "Linear", log: "Log" }, (scale) => on.set({ scale }));
    this.value = el("output", {}, "off");
    this.slider = el("input", { type: "range", min: "0", max: String(MOST_SMOOTHING), step: "0.01", value: "0", "aria-label": "Smoothing", oninput: () => this.smooth() });
    this.reset = el("button", { type: "button", class: "reset", hidden: true, title: "Show the whole run (Esc, or double click)", onclick: () => on.reset() }, "Reset zoom");
    this.note = el("span", { class: "note" });
    this.chips = el("div", { class: "chips" });
    this.element = el(
      "div", { class: "toolbar" },
      this.axis.element, this.scale.element,
      el("label", { class: "smoothing" }, "Smoothing", this.slider, this.value),
      this.reset, this.note, this.chips,
    );
  }

  smooth() {
    const smoothing = Number(this.slider.value);
    setText(this.value, smoothing ? smoothing.toFixed(2) : "off");
    this.on.set({ smoothing });
  }

  toggleScale() {
    this.on.set({ scale: this.isLog ? "linear" : "log" });
  }

  setZoomed(isZoomed) {
    this.reset.hidden = !isZoomed;
  }

  update({ axis, axes, isLog, smoothing, isZoomed, runs, hidden }) {
    this.isLog = isLog;
    for (const [value, button] of this.axis.buttons) {
      button.setAttribute("aria-pressed", String(value === axis));
      button.disabled = !axes.includes(value);
      button.title = button.disabled ? UNKNOWN[value] : "";
    }
    for (const [value, button] of this.scale.buttons) button.setAttribute("aria-pressed", String((value === "log") === isLog));
    if (document.activeElement !== this.slider) this.slider.value = String(smoothing);
    setText(this.value, smoothing ? smoothing.toFixed(2) : "off");
    this.setZoomed(isZoomed);
    setText(this.note, hidden ? `${whole(hidden)} ${hidden === 1 ? "point" : "points"} at or below 0 cannot be shown on a logarithmic scale` : "");
    const told = JSON.stringify(runs.map(({ key, name }) => [key, name]));
    if (told === this.told) return;
    this.told = told;
    this.chips.replaceChildren(...(runs.length > 1 ? runs.map((run, i) => this.chip(run, i)) : []));
  }

  chip({ key, name }, i) {
    const swatch = el("i", { class: "swatch" });
    swatch.style.color = `var(--run-${i % 7})`;
    const close = i > 0 && el("button", { type: "button", "aria-label": `Stop comparing with ${name}`, onclick: () => this.on.compare(key) }, "×");
    return el("span", { class: "chip", title: name }, swatch, el("span", { class: "label" }, name), close);
  }
}
