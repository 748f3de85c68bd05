// What to do about it: the changes as a snippet to copy, the advice and its reason, and what the log could not tell.

import { el } from "./dom.js";

/** Put a text into the clipboard, also where the page was not loaded over https. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { readonly: true, class: "hidden" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function snippet(text) {
  const button = el("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text)) ? "Copied" : "Select and copy by hand";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return el("div", { class: "snippet" }, el("pre", { tabindex: "0" }, text), button);
}

function labelled(label, text) {
  return text ? [el("dt", {}, label), el("dd", {}, text)] : [];
}

export class Cure {
  constructor() {
    this.element = el("section", { class: "cure", "aria-label": "What to do" });
  }

  /** Show what a run's report says, unless that is shown. */
  update(told) {
    const { report, cure, best, stop, rate, skips } = told;
    const text = JSON.stringify([told.key, cure, best, stop, rate, skips, report.notes, report.crashes]);
    if (text === this.told) return;
    this.told = text;
    const facts = [
      ...labelled("why", cure?.why),
      ...(cure?.do_not ?? []).flatMap((one) => labelled("but", one)),
      ...labelled("best", best),
      ...labelled("stop", stop),
      ...labelled("rate", rate),
    ];
    const notes = report.notes.map((note) => el("li", {}, note.text));
    this.element.replaceChildren(
      ...[
        (cure || facts.length > 0) && el("h2", {}, cure ? "What to do" : "For the next run"),
        cure && el("p", { class: "advice" }, cure.advice),
        cure?.snippet && snippet(cure.snippet),
        facts.length > 0 && el("dl", {}, ...facts),
        (notes.length > 0 || skips) && el("h2", {}, "About the log"),
        notes.length > 0 && el("ul", { class: "notes" }, ...notes),
        skips && el("p", { class: "quiet" }, skips),
        report.crashes.length > 0 && el("h2", {}, "Crashed: a bug in Curve Doctor, not in the training"),
        ...report.crashes.map((crash) => el("p", { class: "crash" }, `${crash.code} ${crash.error}`)),
      ].filter(Boolean),
    );
  }
}
