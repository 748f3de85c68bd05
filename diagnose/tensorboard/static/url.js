// The choice of run and axis in TensorBoard's own URL: #curve_doctor&p.curve_doctor.run=lora-a

const PREFIX = "p.curve_doctor.";

/** The window whose URL people see and copy: TensorBoard's, around our frame. */
function outer() {
  try {
    if (window.parent !== window && window.parent.location.href) return window.parent;
  } catch {
    // a page of another site shows us in a frame of its own
  }
  return window;
}

function parts() {
  return outer().location.hash.replace(/^#/, "").split("&").filter(Boolean);
}

/** What the URL says: `run`, `compare` (a list), `axis`, `scale`, `smoothing`. */
export function readUrl() {
  const found = { compare: [] };
  for (const part of parts()) {
    if (!part.startsWith(PREFIX)) continue;
    const [key, value] = part.slice(PREFIX.length).split("=", 2);
    let text;
    try {
      text = decodeURIComponent(value ?? "");
    } catch {
      continue;
    }
    if (key === "compare") found.compare.push(text);
    else found[key] = text;
  }
  return found;
}

/** Say it in the URL, without a new entry in the history; values that are empty are left out. */
export function writeUrl(choice) {
  const kept = parts().filter((part) => !part.startsWith(PREFIX));
  for (const [key, value] of Object.entries(choice)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one) kept.push(`${PREFIX}${key}=${encodeURIComponent(one)}`);
  }
  const { location, history } = outer();
  const hash = kept.length ? `#${kept.join("&")}` : "";
  // our own page has a base for links: a hash alone would lead there
  if (location.hash !== hash) history.replaceState(history.state, "", `${location.pathname}${location.search}${hash}`);
}

/** Call back when the user changes the URL, or goes back. */
export function onUrl(callback) {
  outer().addEventListener("hashchange", callback);
}
