// Small helpers to build the page. Text from a log only ever becomes a text node.

/** An element with attributes (`class`, `on…` functions, `data-…`) and children (nodes or texts). */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

const line = (d) => ["path", { d, fill: "none", stroke: "var(--on-mark)", "stroke-width": 1.8, "stroke-linecap": "round" }];
// A shape of its own for each: colour alone tells nothing to those who do not see it.
const SHAPES = {
  SICK: [["circle", { cx: 8, cy: 8, r: 7 }], line("M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2")],
  WATCH: [["path", { d: "M8 1.2L15.3 14.3H.7z" }], line("M8 6v4M8 12.1v.1")],
  HEALTHY: [["circle", { cx: 8, cy: 8, r: 7 }], line("M4.9 8.3l2.2 2.2 4.1-4.6")],
  INCONCLUSIVE: [["circle", { cx: 8, cy: 8, r: 6.2, fill: "none", stroke: "currentColor", "stroke-width": 1.6, "stroke-dasharray": "2.6 2.2" }]],
  PENDING: [["circle", { cx: 8, cy: 8, r: 2.5 }]],
};

/** The sign of a verdict. */
export function verdictIcon(verdict) {
  const svg = shape("svg", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true", class: "icon" });
  for (const [name, attributes] of SHAPES[verdict] ?? SHAPES.PENDING) svg.append(shape(name, { fill: "currentColor", ...attributes }));
  return svg;
}

/** Set a text only when it differs, so that nothing on the page moves or loses its selection without need. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Put `nodes` under `parent` in this order, touching only those that are out of place. */
export function arrange(parent, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  let at = parent.firstElementChild;
  for (const node of nodes) {
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
}
