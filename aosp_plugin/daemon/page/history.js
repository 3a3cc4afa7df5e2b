// Healthy and allocated devices over the last hours, as two lines with axes.

import { element, onChange, svgElement } from "./dom.js";
import { clock, duration, number } from "./format.js";

const HEIGHT = 92;
const LEFT = 46;  // width of the labels
const BOTTOM = 18;
const TOP = 8;
const RIGHT = 8;

export class HistoryCharts {
  constructor() {
    this.healthy = new Chart("Healthy", "healthy");
    this.allocated = new Chart("Allocated", "allocated");
    this.element = element("div", "history", this.healthy.element, this.allocated.element);
  }

  // Shows the samples of a report, and its present counts as the last point.
  update(report, allocationsKnown) {
    const { samples, counts } = report;
    const now = Math.floor(Date.now() / 60_000) * 60;  // not each report is a reason to draw
    const times = [...samples.times, Math.max(now, samples.times.at(-1) ?? 0)];
    this.element.hidden = samples.times.length < 2;
    this.healthy.draw(times, [...samples.healthy, counts.healthy]);
    this.allocated.draw(times, [...samples.allocated, allocationsKnown ? counts.allocated : null]);
  }
}

class Chart {
  constructor(label, name) {
    this.label = label;
    this.svg = svgElement("svg", { class: `chart ${name}`, role: "img" });
    this.text = element("figcaption", "");
    this.element = element("figure", "", this.text, this.svg);
    this.draw = onChange((times, values) => {
      Object.assign(this, { times, values });
      this.render();
    });
    new ResizeObserver(() => this.render()).observe(this.element);
  }

  render() {
    const width = this.element.clientWidth;
    const known = this.values?.filter((value) => value !== null) ?? [];
    if (width <= 0 || !known.length) return;
    const [lowest, highest] = [Math.min(...known), Math.max(...known)];
    const { from, to } = axis(lowest, highest);
    const [start, end] = [this.times[0], Math.max(this.times.at(-1), this.times[0] + 600)];
    const x = (time) => LEFT + ((width - LEFT - RIGHT) * (time - start)) / (end - start);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - from) / (to - from));
    const span = duration(this.times.at(-1) - start);
    const range = lowest === highest ? `always ${number(lowest)}` : `${number(lowest)} to ${number(highest)}`;
    const last = this.values.at(-1);
    this.text.replaceChildren(
      element("strong", "", this.label),
      element("span", "muted", ` ${range} in ${span}`),
    );
    const now = last === null ? "unknown" : number(last);
    this.svg.setAttribute("aria-label", `${this.label} devices in the last ${span}: ${range}; now ${now}.`);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("height", HEIGHT);
    const labels = this.hours(start, end, x, Math.max(2, width / 80));
    this.svg.replaceChildren(...this.levels([from, (from + to) / 2, to], y, width), ...labels, this.line(x, y));
  }

  // Returns the horizontal lines with their values.
  levels(values, y, width) {
    return values.flatMap((value) => [
      svgElement("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "grid" }),
      svgElement("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, Number.isInteger(value) ? number(value) : ""),
    ]);
  }

  // Returns at most `count` labels of the time axis, at round times.
  hours(start, end, x, count) {
    const step = [120, 300, 600, 1800, 3600, 7200].find((seconds) => (end - start) / seconds <= count) ?? 14_400;
    const labels = [];
    for (let time = Math.ceil(start / step) * step; time <= end; time += step) {
      const place = x(time);
      const anchor = place > x(end) - 16 ? "end" : place < LEFT + 16 ? "start" : "middle";
      labels.push(svgElement("text", { x: place, y: HEIGHT - 3, "text-anchor": anchor }, clock(new Date(time * 1000)).slice(0, 5)));
    }
    return labels;
  }

  // Returns the line, in steps, with gaps where the value is unknown.
  line(x, y) {
    let path = "";
    let drawing = false;
    this.values.forEach((value, i) => {
      if (value === null) {
        drawing = false;
        return;
      }
      const [px, py] = [x(this.times[i]).toFixed(1), y(value).toFixed(1)];
      path += drawing ? `H${px}V${py}` : `M${px} ${py}`;
      drawing = true;
    });
    return svgElement("path", { d: path, class: "line" });
  }
}

// Returns the ends of an axis at round numbers. It starts at 0, unless the values differ by too little to see.
function axis(lowest, highest) {
  const range = highest - lowest;
  if (highest === 0) return { from: 0, to: 1 };
  const zoomed = lowest > 0 && range < highest * 0.2;
  const step = rounded(zoomed ? Math.max(range, 1) : highest);
  const from = zoomed ? Math.max(0, Math.floor(lowest / step) * step - (range === 0 ? step : 0)) : 0;
  const to = Math.ceil(highest / step) * step;
  return { from, to: to > from ? to : from + step };
}

// Returns a round number of which two to five make up the range.
function rounded(range) {
  const power = 10 ** Math.floor(Math.log10(range));
  return [1, 2, 5].map((digit) => digit * power).findLast((step) => step <= Math.max(1, range / 2)) ?? Math.max(1, power / 2);
}
