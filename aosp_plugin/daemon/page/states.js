// What a device can be, in words and in shape. A state is told by its shape as well as by its colour: each shape is a
// path in a square of 12, drawn on the map's canvas and, as SVG, wherever a state is named.

export const STATES = [
  { key: "allocated", label: "Allocated", means: "A pod has it." },
  { key: "free", label: "Free", means: "It is healthy, and no pod has it." },
  { key: "unknown", label: "Healthy", means: "Whether a pod has it is not known." },
  { key: "unhealthy", label: "Unhealthy", means: "It is not handed out." },
  { key: "leaked", label: "Leaked", means: "A process outside its pods holds one of its nodes." },
];

export const STATE = Object.fromEntries(STATES.map((state) => [state.key, state]));

// Squares leave a gap between each other; what calls for somebody fills its place.
const SHAPES = {
  leaked: { path: "M6-.5 12.5 6 6 12.5-.5 6Z", full: true },
  unhealthy: { path: "M6 0 12.3 11.8H-.3Z", full: true },
  allocated: { path: "M0 0h12v12h-12z" },
  free: { path: "M.7.7h10.6v10.6h-10.6z", outline: true },
  unknown: { path: "M3.7 3.7h4.6v4.6h-4.6z", ground: "M0 0h12v12h-12z" },
};

// The colours are those of the style sheet, for the theme that is on.
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const all = { label: of("--muted"), line: of("--free-line"), ground: of("--unknown-ground") };
  for (const { key } of STATES) all[key] = of(`--${key}`);
  return all;
}

// A square canvas of `size` device pixels, of which `gap` stay empty, with the shape of a state.
export function sprite(state, size, gap, colour) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  const { path, outline, full, ground } = SHAPES[state];
  const inside = full ? size : size - gap;
  const edge = Math.floor((size - inside) / 2);
  context.translate(edge, edge);
  if (outline) {  // along whole pixels, or a thin line is a blurred one
    const width = Math.max(1, Math.round(inside / 14));
    context.fillStyle = colour.line;
    context.fillRect(0, 0, inside, inside);
    context.fillStyle = colour[state];
    context.fillRect(width, width, inside - 2 * width, inside - 2 * width);
    return canvas;
  }
  context.scale(inside / 12, inside / 12);
  if (ground) {
    context.fillStyle = colour.ground;
    context.fill(new Path2D(ground));
  }
  context.fillStyle = colour[state];
  context.fill(new Path2D(path));
  return canvas;
}

export function glyph(state) {
  const { path, outline, ground } = SHAPES[state];
  const svg = svgElement("svg", { viewBox: "-2 -2 16 16", class: `glyph ${state}`, "aria-hidden": "true" });
  if (ground) svg.append(svgElement("path", { d: ground, class: "ground" }));
  svg.append(svgElement("path", { d: path, class: outline ? "outline" : "" }));
  return svg;
}

function svgElement(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// An element with a class and children; text is only ever set as text, for pods and processes choose their own names.
export function element(name, className = "", ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

export const number = (value) => value.toLocaleString("en-US");

export const clock = (date) => date.toLocaleTimeString("en-GB");

// Everything by which a device is found.
export function haystack(device) {
  const pods = device.pods.map((pod) => `${pod.namespace}/${pod.name} ${pod.container}`);
  const near = device.numa.map((node) => `numa${node}`);
  return [device.id, device.state, device.reason, ...device.nodes, ...pods, ...near].join(" ").toLowerCase();
}
