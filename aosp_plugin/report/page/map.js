// The map: one cell per device, in the order of the device list and with round numbers of columns. It is drawn on a
// canvas, because ten thousand elements would take seconds. Keyboard and screen readers use a single element, the
// selected cell of a grid that states its size. The same element draws the ring around the cell.

import { element } from "./dom.js";
import { STATE, colours, describe, sprite } from "./states.js";

const MAX_HEIGHT = 640;  // fits on a screen
const MIN_PITCH = 9;  // large enough to click
const MAX_PITCH = 24;
const COLUMNS = [10, 20, 30, 40, 50, 60, 80, 100, 200];
const GUTTER = 64;  // width of the row labels
const TOP = 4;  // room for the upper half of the first label
const DIMMED = 0.14;
const MAX_PULSES = 60;

// Returns the largest cells that keep the map within MAX_HEIGHT; otherwise the smallest cells in the most columns.
function grid(width, count) {
  const layouts = COLUMNS.map((columns) => ({ columns, pitch: Math.min(MAX_PITCH, Math.floor(width / columns)) }));
  const legible = layouts.filter(({ pitch }) => pitch >= MIN_PITCH);
  if (!legible.length) return { columns: COLUMNS[0], pitch: MIN_PITCH };
  const fitting = legible.filter(({ columns, pitch }) => Math.ceil(count / columns) * pitch <= MAX_HEIGHT);
  return fitting.length ? fitting.reduce((best, layout) => (layout.pitch >= best.pitch ? layout : best)) : { ...legible.at(-1), pitch: MIN_PITCH };
}

export class DeviceMap {
  // `select` is called with an index.
  constructor(name, select) {
    this.select = select;
    this.devices = [];
    this.matches = null;
    this.selected = -1;
    this.columns = this.pitch = 0;
    this.canvas = element("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.cell = element("div", "cell");
    this.cell.setAttribute("role", "gridcell");
    this.cell.id = `cell-${name.replace(/[^a-z0-9]/gi, "-")}`;
    this.row = element("div", "row", this.cell);
    this.row.setAttribute("role", "row");
    this.hover = element("div", "hover");
    this.tip = element("div", "tip");
    this.tip.setAttribute("aria-hidden", "true");
    this.tip.hidden = this.hover.hidden = true;
    this.element = element("div", "map", this.canvas, this.row, this.hover, this.tip);
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "grid");
    this.element.setAttribute("aria-label", `Devices of ${name}. Use the arrow keys to move between devices.`);
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("focus", () => this.selected < 0 && this.devices.length && this.select(0));
    this.element.addEventListener("pointermove", (event) => this.hoverAt(event));
    this.element.addEventListener("pointerleave", () => this.hoverAt(null));
    this.element.addEventListener("pointerdown", (event) => this.click(event));
    new ResizeObserver(() => this.layOut()).observe(this.element);
    document.addEventListener("themechange", () => this.layOut(true));
  }

  // Sets the devices and which of them match the search (null: all). Draws the differences and returns the indices of
  // the devices that changed.
  update(devices, matches) {
    const before = this.devices;
    const same = before.length === devices.length && devices.every((device, i) => device.id === before[i].id);
    const changed = same ? devices.flatMap((device, i) => (device.state === before[i].state ? [] : [i])) : [];
    const redraw = matches !== this.matches;
    this.devices = devices;
    this.matches = matches;
    if (!same) this.layOut(true);
    else if (redraw) this.drawAll();
    else if (this.sprites && !this.outdated) for (const i of changed) this.draw(i);
    if (this.element.offsetParent) for (const i of changed.slice(0, MAX_PULSES)) this.pulse(i);
    this.place();
    return changed;
  }

  // Chooses columns and cell size for the available width.
  layOut(force = false) {
    const width = this.element.clientWidth - GUTTER;
    const count = this.devices.length;
    this.outdated ||= force;
    if (width <= 0) return;  // hidden
    const ratio = devicePixelRatio || 1;
    const { columns, pitch } = grid(width, count);
    if (!this.outdated && pitch === this.pitch && columns === this.columns && ratio === this.ratio) return;
    Object.assign(this, { pitch, columns, ratio, outdated: false });
    this.rows = Math.ceil(count / columns);
    this.size = Math.round(pitch * ratio);
    const [canvasWidth, canvasHeight] = [GUTTER + columns * pitch, 2 * TOP + this.rows * pitch];
    this.canvas.width = Math.round(canvasWidth * ratio);
    this.canvas.height = Math.round(canvasHeight * ratio);
    this.canvas.style.width = `${canvasWidth}px`;
    this.canvas.style.height = `${canvasHeight}px`;
    this.element.style.setProperty("--pitch", `${pitch}px`);
    Object.assign(this.canvas.dataset, { pitch, columns, left: GUTTER, top: TOP });
    this.element.setAttribute("aria-rowcount", this.rows);
    this.element.setAttribute("aria-colcount", columns);
    this.colours = colours();
    const gap = Math.round((pitch > 14 ? 3 : 2) * ratio);
    const drawn = Object.keys(STATE).map((key) => [key, sprite(key, this.size, gap, this.colours)]);
    this.sprites = Object.fromEntries(drawn);
    this.drawAll();
    this.place();
  }

  drawAll() {
    if (!this.sprites || this.outdated) return;
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.devices.forEach((_, i) => this.draw(i));
    this.drawLabels(context);
  }

  draw(i) {
    const context = this.canvas.getContext("2d");
    const [x, y] = this.at(i).map((place) => Math.round(place * this.ratio));
    context.clearRect(x, y, this.size, this.size);
    context.globalAlpha = !this.matches || this.matches[i] ? 1 : DIMMED;
    context.drawImage(this.sprites[this.devices[i].state], x, y);
    context.globalAlpha = 1;
  }

  // Labels rows, as far as there is room, with the number at the end of their first device ID.
  drawLabels(context) {
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = this.colours.label;
    context.font = `11px ${getComputedStyle(this.element).fontFamily}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const step = Math.ceil(18 / this.pitch);
    const interval = this.rows > 12 && step < 5 ? Math.max(step, this.pitch < 14 ? 5 : 2) : step;
    for (let row = 0; row < this.rows; row += interval) {
      const id = this.devices[row * this.columns].id;
      const label = /\d+$/.exec(id)?.[0] ?? id.slice(0, 8);
      context.fillText(label, GUTTER - 12, TOP + (row + 0.5) * this.pitch);
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  at(i) {
    return [GUTTER + (i % this.columns) * this.pitch, TOP + Math.floor(i / this.columns) * this.pitch];
  }

  indexAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - GUTTER) / this.pitch);
    const i = Math.floor((event.clientY - box.top - TOP) / this.pitch) * this.columns + column;
    return column >= 0 && column < this.columns && i >= 0 && i < this.devices.length ? i : -1;
  }

  hoverAt(event) {
    const i = event ? this.indexAt(event) : -1;
    this.tip.hidden = this.hover.hidden = i < 0;
    if (i < 0) return;
    const [x, y] = this.at(i);
    this.hover.style.transform = `translate(${x}px, ${y}px)`;
    this.tip.textContent = describe(this.devices[i]);
    const right = x > this.element.clientWidth / 2;
    const place = `translate(${right ? x : x + this.pitch + 4}px, ${y + this.pitch + 6}px)`;
    this.tip.style.transform = right ? `${place} translateX(-100%)` : place;
  }

  click(event) {
    const i = this.indexAt(event);
    if (i >= 0) this.select(i);
  }

  key(event) {
    const { columns, devices, selected } = this;
    const row = Math.floor(selected / columns) * columns;
    const last = devices.length - 1;
    const targets = {
      ArrowLeft: selected - 1,
      ArrowRight: selected + 1,
      ArrowUp: selected - columns,
      ArrowDown: selected + columns,
      PageUp: selected - 10 * columns,
      PageDown: selected + 10 * columns,
      Home: event.ctrlKey ? 0 : row,
      End: event.ctrlKey ? last : Math.min(row + columns - 1, last),
    };
    if (!(event.key in targets) || event.altKey || event.metaKey || last < 0) return;
    event.preventDefault();
    const target = targets[event.key];
    const page = event.key.startsWith("Page");
    if (target >= 0 && target <= last) this.select(target);
    else if (page) this.select(target < 0 ? selected % columns : last);
  }

  // Selects a cell: moves the ring, which is also the cell for screen readers.
  show(i) {
    this.selected = i;
    this.hoverAt(null);
    this.place();
    if (i >= 0 && this.element.contains(document.activeElement)) this.cell.scrollIntoView({ block: "nearest" });
  }

  place() {
    const i = this.selected;
    this.cell.hidden = i < 0 || i >= this.devices.length;
    if (this.cell.hidden) {
      this.element.removeAttribute("aria-activedescendant");
      return;
    }
    const [x, y] = this.at(i);
    this.cell.style.transform = `translate(${x}px, ${y}px)`;
    this.cell.setAttribute("aria-colindex", (i % this.columns) + 1);
    this.row.setAttribute("aria-rowindex", Math.floor(i / this.columns) + 1);
    this.cell.setAttribute("aria-label", describe(this.devices[i]));
    this.cell.setAttribute("aria-selected", "true");
    this.element.setAttribute("aria-activedescendant", this.cell.id);
  }

  // Highlights a changed cell for a moment. The style sheet disables the motion if the user prefers that.
  pulse(i) {
    const [x, y] = this.at(i);
    const ring = element("div", "pulse");
    ring.style.left = `${x}px`;
    ring.style.top = `${y}px`;
    ring.addEventListener("animationend", () => ring.remove());
    this.element.append(ring);
  }
}
