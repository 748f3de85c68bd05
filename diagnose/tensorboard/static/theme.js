// Light or dark as TensorBoard is, and the colours that the canvas needs.

const QUERY = window.matchMedia("(prefers-color-scheme: dark)");

function tensorBoardsBody() {
  try {
    return window.parent !== window ? window.parent.document.body : null;
  } catch {
    return null;
  }
}

function isDark() {
  const body = tensorBoardsBody();
  return body ? body.classList.contains("dark-mode") : QUERY.matches;
}

/** Follow TensorBoard's theme, and call back after each change. */
export function followTheme(callback) {
  const apply = () => {
    const theme = isDark() ? "dark" : "light";
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    callback(theme);
  };
  apply();
  const body = tensorBoardsBody();
  if (body) new MutationObserver(apply).observe(body, { attributes: true, attributeFilter: ["class"] });
  else QUERY.addEventListener("change", apply);
}

/** A colour of the style sheet, for the canvas. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Colours of runs that are compared, told apart also by those who do not see red and green. */
export const RUN_COLOURS = 7;

export function runColour(index) {
  return colour(`run-${index % RUN_COLOURS}`);
}
