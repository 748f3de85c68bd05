// The list of runs: worst first, searchable, patched in place so that it never flickers and keeps its scroll position.

import { ago, whole } from "./format.js";
import { arrange, el, setText, verdictIcon } from "./dom.js";

const TITLES = { SICK: "Sick", WATCH: "Watch", INCONCLUSIVE: "Inconclusive", HEALTHY: "Healthy", PENDING: "Not examined yet" };

export class RunList {
  /** @param on `{ choose(key), compare(key) }` */
  constructor(on) {
    this.on = on;
    this.rows = new Map();
    this.items = new Map();
    this.headings = new Map();
    this.order = [];
    this.chosen = null;
    this.compared = [];
    this.search = el("input", {
      type: "search", id: "search", placeholder: "Search runs and findings", "aria-label": "Search runs and findings", spellcheck: "false", autocomplete: "off",
      oninput: () => this.arrange(),
      onkeydown: (event) => this.onSearchKey(event),
    });
    this.count = el("span", { class: "count", "aria-live": "polite" });
    this.body = el("ul", { class: "rows", "aria-label": "Runs, worst first", onkeydown: (event) => this.onKey(event) });
    this.empty = el("p", { class: "empty" });
    this.element = el("nav", { class: "list", "aria-label": "Runs" }, el("div", { class: "list-head" }, this.search, this.count), this.body, this.empty);
  }

  /** Take an answer of the `runs` route. */
  update(told) {
    for (const row of told.rows) this.rows.set(row.key, row);
    const known = new Set(told.order);
    for (const key of this.rows.keys()) {
      if (known.has(key)) continue;
      this.rows.delete(key);
      this.items.delete(key);
    }
    this.order = told.order;
    for (const row of told.rows) this.patch(row);
    this.arrange();
  }

  choose(key, compared) {
    const changed = new Set([this.chosen, key, ...this.compared, ...compared]);
    this.chosen = key;
    this.compared = compared;
    for (const one of changed) if (this.rows.has(one)) this.patch(this.rows.get(one));
    this.roam();
  }

  /** Bring the chosen run into view. */
  reveal() {
    this.items.get(this.chosen)?.item.scrollIntoView({ block: "center" });
  }

  item(key) {
    const known = this.items.get(key);
    if (known) return known;
    const icon = el("span", { class: "sign" });
    const name = el("span", { class: "name" });
    const story = el("span", { class: "story" });
    const facts = el("span", { class: "facts" });
    const button = el("button", { type: "button", class: "run", "data-run": key, tabindex: "-1", onclick: () => this.on.choose(key) }, icon, name, story, facts);
    const compare = el("button", { type: "button", class: "compare", tabindex: "-1", onclick: () => this.on.compare(key) });
    const item = el("li", {}, button, compare);
    const parts = { item, button, icon, name, story, facts, compare, verdict: undefined };
    this.items.set(key, parts);
    return parts;
  }

  patch(row) {
    const parts = this.item(row.key);
    const verdict = row.verdict ?? "PENDING";
    if (parts.verdict !== verdict) {
      parts.verdict = verdict;
      parts.item.dataset.verdict = verdict;
      parts.icon.replaceChildren(verdictIcon(verdict), el("span", { class: "hidden" }, TITLES[verdict]));
    }
    setText(parts.name, row.name);
    parts.name.title = row.name;
    const share = row.share > 0 ? ` ${Math.round(100 * row.share)} %` : "";
    setText(parts.story, row.headline ?? (row.is_pending ? `examining…${share}` : "could not be examined"));
    parts.story.title = row.headline ?? "";
    const facts = [
      row.best && ["best", whole(row.best.step)],
      row.stop_step !== null && row.stop_step !== undefined && ["stop", whole(row.stop_step)],
      ["last", whole(row.last_step)],
    ].filter(Boolean);
    const told = `${JSON.stringify(facts)}${this.isLive(row)}`;
    if (parts.told !== told) {
      parts.told = told;
      parts.facts.replaceChildren(
        ...facts.map(([what, value]) => el("span", { class: `fact ${what}` }, el("i", {}, what), value)),
        this.isLive(row) ? el("span", { class: "live", title: `last logged ${ago(row.logged_at)}` }, "live") : "",
      );
    }
    const isChosen = row.key === this.chosen;
    parts.item.classList.toggle("chosen", isChosen);
    parts.button.setAttribute("aria-current", String(isChosen));
    const at = this.compared.indexOf(row.key);
    parts.item.classList.toggle("compared", at >= 0);
    parts.compare.setAttribute("aria-pressed", String(at >= 0));
    const label = at >= 0 ? `Stop comparing with ${row.name}` : `Compare with ${row.name}`;
    parts.compare.title = parts.compare.ariaLabel = label;
    parts.compare.style.setProperty("--swatch", at >= 0 ? `var(--run-${(at + 1) % 7})` : "");
    parts.text = `${row.name} ${row.verdict ?? ""} ${row.finding?.name ?? ""} ${row.headline ?? ""}`.toLowerCase();
  }

  isLive(row) {
    return row.logged_at !== null && Date.now() / 1000 - row.logged_at < 180;
  }

  /** Rows that the search leaves, under a heading for each verdict. */
  arrange() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = this.order.filter((key) => words.every((word) => this.items.get(key)?.text.includes(word)));
    const counts = new Map();
    for (const key of shown) counts.set(this.items.get(key).verdict, (counts.get(this.items.get(key).verdict) ?? 0) + 1);
    const nodes = [];
    let last = null;
    for (const key of shown) {
      const { item, verdict } = this.items.get(key);
      if (verdict !== last) nodes.push(this.heading(verdict, counts.get(verdict)));
      last = verdict;
      nodes.push(item);
    }
    arrange(this.body, nodes);
    this.shown = shown;
    setText(this.count, words.length ? `${shown.length} of ${this.order.length}` : "");
    setText(this.empty, words.length && !shown.length ? `No run matches “${this.search.value.trim()}”.` : "");
    this.roam();
  }

  heading(verdict, n) {
    if (!this.headings.has(verdict)) {
      const count = el("span", { class: "n" });
      const node = el("li", { class: "heading", "data-verdict": verdict, role: "presentation" }, el("span", {}, TITLES[verdict]), count);
      this.headings.set(verdict, { node, count });
    }
    const { node, count } = this.headings.get(verdict);
    setText(count, String(n));
    return node;
  }

  /** One row of the list is reached by Tab: the chosen one, else the first. */
  roam() {
    const shown = this.shown ?? [];
    const at = shown.includes(this.chosen) ? this.chosen : shown[0];
    for (const [key, { button, compare }] of this.items) button.tabIndex = compare.tabIndex = key === at ? 0 : -1;
  }

  onSearchKey(event) {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      this.focus(this.shown[0]);
      if (event.key === "Enter" && this.shown.length) this.on.choose(this.shown[0]);
    } else if (event.key === "Escape") {
      this.search.value = "";
      this.arrange();
    }
  }

  onKey(event) {
    const key = event.target.closest("li")?.querySelector(".run")?.dataset.run;
    if (event.key === "c" && key) {
      this.on.compare(key);
      return;
    }
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const to = Math.min(Math.max(this.shown.indexOf(key) + moves[event.key], 0), this.shown.length - 1);
    this.focus(this.shown[to]);
    this.on.choose(this.shown[to]);
  }

  focus(key) {
    const parts = this.items.get(key);
    parts?.button.focus({ preventScroll: true });
    parts?.item.scrollIntoView({ block: "nearest" });
  }
}
