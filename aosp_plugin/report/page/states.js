// The states of a device with their names and shapes. Each state has a shape in addition to its color: a path in a
// square of 12 units, drawn on the canvas of the map and, as SVG, next to the name of the state.

import { svgElement } from "./dom.js";

export const STATES = [
  { key: "allocated", label: "Allocated", meaning: "Healthy and allocated to a pod." },
  { key: "free", label: "Free", meaning: "Healthy and not allocated." },
  { key: "unknown", label: "Healthy", meaning: "Healthy; whether it is allocated is unknown." },
  { key: "unhealthy", label: "Unhealthy", meaning: "Not allocatable." },
];

// What is counted, and can be shown alone. Unlike states, these overlap: a pod may have an unhealthy device.
export const COUNTS = [
  { key: "allocated", label: "Allocated", meaning: "A pod has it, in any state.", of: ({ pods }) => pods.length > 0 },
  { key: "free", label: "Free", meaning: "Healthy and not allocated.", of: ({ state }) => state === "free" },
  {
    key: "unknown",
    label: "Healthy",
    meaning: "Healthy; whether it is allocated is unknown.",
    of: ({ state }) => state === "unknown",
  },
  {
    key: "unhealthy",
    label: "Unhealthy",
    meaning: "Not allocatable.",
    of: ({ reason }) => reason && reason !== "gone",
  },
  {
    key: "gone",
    label: "Gone",
    glyph: "unhealthy",
    meaning: "A pod has it, but it no longer exists.",
    of: ({ reason }) => reason === "gone",
  },
];

export const STATE = Object.fromEntries(STATES.map((state) => [state.key, state]));

// Squares leave a gap between cells; the shapes of problems fill the whole cell.
const SHAPES = {
  error: { path: "M6-.5 12.5 6 6 12.5-.5 6Z", full: true },
  unhealthy: { path: "M6 0 12.3 11.8H-.3Z", full: true },
  allocated: { path: "M0 0h12v12h-12z" },
  free: { path: "M.7.7h10.6v10.6h-10.6z", outline: true },
  unknown: { path: "M3.7 3.7h4.6v4.6h-4.6z", ground: "M0 0h12v12h-12z" },
};

// Returns the colors of the style sheet in the current theme.
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const all = { label: of("--muted"), line: of("--free-line"), ground: of("--unknown-ground") };
  for (const { key } of STATES) all[key] = of(`--${key}`);
  return all;
}

// Returns a square canvas of `size` device pixels with the shape of a state; `gap` pixels stay empty.
export function sprite(state, size, gap, colour) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  const { path, outline, full, ground } = SHAPES[state];
  const inside = full ? size : size - gap;
  const edge = Math.floor((size - inside) / 2);
  context.translate(edge, edge);
  if (outline) {  // aligned to whole pixels, so that a thin line is sharp
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

// Returns the text that a search matches, in lower case.
export function searchText(device) {
  const pods = device.pods.map((pod) => `${pod.namespace}/${pod.name} ${pod.container}`);
  const numa = device.numa.map((node) => `numa${node}`);
  const names = [...device.binder_devices, ...device.spread_devices];
  return [device.id, device.state, device.reason, ...names, ...pods, ...numa].join(" ").toLowerCase();
}

// Returns whether a device is to be seen by an operator.
export const hasProblem = (device) => device.state === "unhealthy";

export const podName = (pod) => `${pod.namespace}/${pod.name}`;

export function describe(device) {
  const pods = device.pods.map((pod) => `${podName(pod)} (${pod.container})`);
  return [device.id, STATE[device.state].label.toLowerCase(), device.reason, ...pods].filter(Boolean).join(" · ");
}
