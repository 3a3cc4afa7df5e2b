// The map: one cell for each device, in the plugin's order and in columns that are easy to count. It is drawn on a
// canvas, since ten thousand elements would take seconds. What a screen reader and the keyboard need is one element,
// the cell that is selected, in a grid that says how large it is: that element is also the ring around the cell.

import { STATE, colours, element, sprite } from "./states.js";

const TALLEST = 640;  // as much as fits on a screen, while cells stay large enough to be hit
const SMALLEST = 9;
const LARGEST = 24;
const COLUMNS = [10, 20, 30, 40, 50, 60, 80, 100, 200];
const GUTTER = 64;  // for the labels of rows
const TOP = 4;  // for the upper half of the first label
const DIMMED = 0.14;
const MOST_PULSES = 60;

// The largest cells with which the map is no taller than TALLEST; the most columns of the smallest where it is anyway.
function grid(width, count) {
  const every = COLUMNS.map((columns) => ({ columns, pitch: Math.min(LARGEST, Math.floor(width / columns)) }));
  const legible = every.filter(({ pitch }) => pitch >= SMALLEST);
  if (!legible.length) return { columns: COLUMNS[0], pitch: SMALLEST };
  const fitting = legible.filter(({ columns, pitch }) => Math.ceil(count / columns) * pitch <= TALLEST);
  return fitting.length ? fitting.reduce((best, one) => (one.pitch >= best.pitch ? one : best)) : { ...legible.at(-1), pitch: SMALLEST };
}

export class DeviceMap {
  // `select` is called with an index, and `describe` returns the words for a device.
  constructor(name, select, describe) {
    this.select = select;
    this.describe = describe;
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
    this.element.setAttribute("aria-label", `Devices of ${name}. Arrow keys go from one to the next.`);
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("focus", () => this.selected < 0 && this.devices.length && this.select(0));
    this.element.addEventListener("pointermove", (event) => this.point(event));
    this.element.addEventListener("pointerleave", () => this.point(null));
    this.element.addEventListener("pointerdown", (event) => this.take(event));
    new ResizeObserver(() => this.layOut()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.layOut(true));
  }

  // Takes devices, and which of them match (null: all); draws what is different. Returns the indices of changed ones.
  update(devices, matches) {
    const before = this.devices;
    const same = before.length === devices.length && devices.every((device, i) => device.id === before[i].id);
    const changed = same ? devices.flatMap((device, i) => (device.state === before[i].state ? [] : [i])) : [];
    const redraw = matches !== this.matches;
    this.devices = devices;
    this.matches = matches;
    if (!same) this.layOut(true);
    else if (redraw) this.drawAll();
    else for (const i of changed) this.draw(i);
    for (const i of changed.slice(0, MOST_PULSES)) this.pulse(i);
    this.place();
    return changed;
  }

  // Finds the columns and the size of a cell for the width there is.
  layOut(anew = false) {
    const width = this.element.clientWidth - GUTTER;
    const count = this.devices.length;
    if (width <= 0) return;
    const ratio = devicePixelRatio || 1;
    const { columns, pitch } = grid(width, count);
    if (!anew && pitch === this.pitch && columns === this.columns && ratio === this.ratio) return;
    Object.assign(this, { pitch, columns, ratio });
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
    if (!this.sprites) return;
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

  // Beside every row that has room for it: the number that its first device's name ends with.
  drawLabels(context) {
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = this.colours.label;
    context.font = `11px ${getComputedStyle(this.element).fontFamily}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const step = Math.ceil(18 / this.pitch);
    const every = this.rows > 12 && step < 5 ? Math.max(step, this.pitch < 14 ? 5 : 2) : step;
    for (let row = 0; row < this.rows; row += every) {
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

  point(event) {
    const i = event ? this.indexAt(event) : -1;
    this.tip.hidden = this.hover.hidden = i < 0;
    if (i < 0) return;
    const [x, y] = this.at(i);
    this.hover.style.transform = `translate(${x}px, ${y}px)`;
    this.tip.textContent = this.describe(this.devices[i]);
    const right = x > this.element.clientWidth / 2;
    const place = `translate(${right ? x : x + this.pitch + 4}px, ${y + this.pitch + 6}px)`;
    this.tip.style.transform = right ? `${place} translateX(-100%)` : place;
  }

  take(event) {
    const i = this.indexAt(event);
    if (i >= 0) this.select(i);
  }

  key(event) {
    const { columns, devices, selected } = this;
    const row = Math.floor(selected / columns) * columns;
    const last = devices.length - 1;
    const goals = {
      ArrowLeft: selected - 1,
      ArrowRight: selected + 1,
      ArrowUp: selected - columns,
      ArrowDown: selected + columns,
      PageUp: selected - 10 * columns,
      PageDown: selected + 10 * columns,
      Home: event.ctrlKey ? 0 : row,
      End: event.ctrlKey ? last : Math.min(row + columns - 1, last),
    };
    if (!(event.key in goals) || event.altKey || event.metaKey || last < 0) return;
    event.preventDefault();
    const goal = goals[event.key];
    const page = event.key.startsWith("Page");
    if (goal >= 0 && goal <= last) this.select(goal);
    else if (page) this.select(goal < 0 ? selected % columns : last);
  }

  // Puts the ring, which is the cell for those who can't see, where it belongs.
  show(i) {
    this.selected = i;
    this.point(null);
    this.place();
    if (i >= 0) this.cell.scrollIntoView({ block: "nearest" });
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
    this.cell.setAttribute("aria-label", this.describe(this.devices[i]));
    this.cell.setAttribute("aria-selected", "true");
    this.element.setAttribute("aria-activedescendant", this.cell.id);
  }

  // Shows for a moment that a cell has changed; the style sheet says how, and stills it where motion is not wanted.
  pulse(i) {
    const [x, y] = this.at(i);
    const ring = element("div", "pulse");
    ring.style.left = `${x}px`;
    ring.style.top = `${y}px`;
    ring.addEventListener("animationend", () => ring.remove());
    this.element.append(ring);
  }
}
