// What was found: one card a kind, linked with the marks on the chart by hover, click and keyboard.

import { get } from "./api.js";
import { el } from "./dom.js";

/** Findings of one kind that are told in full before a click. */
const TOLD = 2;

export class Findings {
  /** @param on `{ active(id | null), pin(id), zoom(id), fail(error) }`; an id is `letter:index`. */
  constructor(on) {
    this.on = on;
    this.opened = new Set();
    this.explained = new Set();
    this.explanations = new Map();
    this.body = el("div", { class: "cards", onkeydown: (event) => this.onKey(event) });
    this.element = el("section", { class: "findings", "aria-label": "Findings" }, el("h2", {}, "Findings"), this.body);
  }

  /** Show the groups of a run's report, unless they are the ones shown. */
  update(key, groups) {
    const told = JSON.stringify([key, groups]);
    if (told === this.told) return;
    if (key !== this.key) {
      this.opened.clear();
      this.explained.clear();
    }
    this.told = told;
    this.key = key;
    this.groups = groups;
    const focused = document.activeElement?.dataset?.focus;
    this.body.replaceChildren(...(groups.length ? groups.map((group) => this.card(group)) : [el("p", { class: "quiet" }, "Nothing was found.")]));
    this.mark(this.active, this.pinned);
    if (focused) this.body.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  card(group) {
    const isOpen = this.opened.has(group.letter);
    const shown = isOpen ? group.findings : group.findings.slice(0, TOLD);
    const left = group.findings.length - shown.length;
    const often = group.findings.length > 1 ? `${group.findings.length} times` : "";
    const state = [group.metric, often, group.is_open ? "" : "resolved"].filter(Boolean).join(" · ");
    const card = el(
      "article",
      { class: "card", "data-severity": group.severity, "data-open": String(group.is_open) },
      el(
        "header",
        {},
        el("span", { class: "letter", "aria-hidden": "true" }, group.letter),
        el("span", { class: "rule" }, group.name),
        el("span", { class: "code" }, group.code),
        el("span", { class: "severity" }, group.severity),
        el("span", { class: "where" }, state),
        el("button", { type: "button", class: "why", "data-focus": `why ${group.code}`, "aria-expanded": String(this.explained.has(group.code)), onclick: () => this.explain(group.code) }, "Why?"),
      ),
      this.explained.has(group.code) && this.explanation(group.code),
      ...shown.map((finding, i) => this.finding(group, finding, i)),
      left > 0 && el("button", { type: "button", class: "more", onclick: () => this.open(group.letter) }, `${left} more, from step ${group.findings[shown.length].first_step}`),
    );
    return card;
  }

  finding(group, finding, i) {
    const id = `${group.letter}:${i}`;
    const inside = [
      el("span", { class: "message" }, finding.message),
      finding.where && !finding.message.includes(finding.where) && el("span", { class: "at" }, finding.where),
      ...finding.evidence.map((text) => el("span", { class: "evidence" }, text)),
    ];
    if (!group.has_place) return el("div", { class: "finding plain" }, ...inside);
    return el(
      "button",
      {
        type: "button", class: "finding", "data-finding": id, "data-focus": id, "data-first": finding.first_step, "data-last": finding.last_step, "aria-pressed": "false",
        title: "Click to keep it marked on the chart, double click to zoom to it",
        onmouseenter: () => this.on.active(id), onmouseleave: () => this.on.active(null),
        onfocus: () => this.on.active(id), onblur: () => this.on.active(null),
        onclick: () => this.on.pin(id), ondblclick: () => this.on.zoom(id),
      },
      ...inside,
    );
  }

  open(letter) {
    this.opened.add(letter);
    this.rebuild();
  }

  /** Open or close what a rule says of itself. */
  async explain(code) {
    if (!this.explained.delete(code)) this.explained.add(code);
    if (!this.explanations.has(code)) {
      try {
        const told = await get("explain", { code });
        this.explanations.set(code, [["", told.sentence], ...Object.entries(told.sections)]);
      } catch (error) {
        this.explained.delete(code);
        this.on.fail(error);
        return;
      }
    }
    this.rebuild();
  }

  explanation(code) {
    const parts = (this.explanations.get(code) ?? []).flatMap(([title, text]) => [title && el("h3", {}, title), el("p", {}, text)]);
    return el("div", { class: "explanation" }, ...parts.filter(Boolean));
  }

  rebuild() {
    this.told = null;
    this.update(this.key, this.groups);
  }

  /** Show which finding is under the pointer and which is kept. */
  mark(active, pinned) {
    this.active = active;
    this.pinned = pinned;
    for (const node of this.body.querySelectorAll(".finding[data-finding]")) {
      node.classList.toggle("active", node.dataset.finding === active);
      node.setAttribute("aria-pressed", String(node.dataset.finding === pinned));
    }
  }

  /** Open the card of a finding that is behind a "more". The page does not scroll: the chart is where the user looks. */
  show(id) {
    const [letter, index] = id.split(":");
    if (Number(index) >= TOLD && !this.opened.has(letter)) this.open(letter);
  }

  onKey(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key === "z" && event.target.dataset.finding) this.on.zoom(event.target.dataset.finding);
    if (!(event.key in moves)) return;
    const all = [...this.body.querySelectorAll(".finding[data-finding]")];
    const to = all[all.indexOf(document.activeElement) + moves[event.key]];
    if (to) {
      event.preventDefault();
      to.focus();
    }
  }
}
