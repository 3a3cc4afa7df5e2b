// One resource: its registration, its counts (which are also the legend of the map and its filter), map and table.

import { DeviceMap } from "./map.js";
import { DeviceTable } from "./table.js";
import { STATES, STATE, element, glyph, searchText, number } from "./states.js";

export class Resource {
  // Calls `actions.select(resource, index)` and `actions.toggle(state)` on user input.
  constructor(name, actions) {
    this.name = name;
    this.report = null;
    const select = (i) => actions.select(this, i);
    this.pill = element("p", "pill");
    this.problem = element("p", "banner bad");
    this.legend = element("div", "legend");
    this.legend.setAttribute("role", "group");
    this.legend.setAttribute("aria-label", "Device counts; press one to show only its devices");
    this.chips = Object.fromEntries(STATES.map(({ key }) => [key, this.chip(key, actions)]));
    this.total = element("p", "total");
    this.legend.append(this.total, ...Object.values(this.chips).map((chip) => chip.button));
    this.bar = element("div", "bar");
    this.bar.setAttribute("aria-hidden", "true");
    this.parts = Object.fromEntries(STATES.map(({ key }) => [key, element("span", key)]));
    this.bar.append(...Object.values(this.parts));
    this.empty = element("p", "empty", "No devices. A binder device appears here as soon as it exists.");
    this.note = element("p", "note-line");
    this.map = new DeviceMap(name, select, describe);
    this.table = new DeviceTable(select);
    const head = element("div", "head", element("h2", "", name), this.pill);
    const counts = [this.problem, this.legend, this.bar];
    const devices = [this.map.element, this.empty, this.note, this.table.element];
    this.element = element("section", "card resource", head, ...counts, ...devices);
    this.element.setAttribute("aria-label", name);
  }

  chip(key, actions) {
    const value = element("span", "value");
    const button = element("button", `stat ${key}`, element("span", "name", glyph(key), STATE[key].label), value);
    button.type = "button";
    button.title = STATE[key].meaning;
    button.addEventListener("click", () => actions.toggle(key));
    return { button, value };
  }

  // Shows a report with search terms in lower case and a set of states as filter. Returns the changed devices as pairs
  // of the new and the previous report of a device.
  update(report, terms, states) {
    const before = this.report?.devices ?? [];
    if (this.report !== report) this.matches = undefined;
    this.report = report;
    const key = JSON.stringify([terms, [...states]]);
    if (this.matches === undefined || key !== this.filterKey) {
      this.filterKey = key;
      const all = terms.length === 0 && states.size === 0;
      this.matches = all ? null : report.devices.map((device) => matches(device, terms, states));
    }
    this.showCounts(states);
    const changed = this.map.update(report.devices, this.matches);
    this.table.update(report, this.matches);
    return changed.map((i) => [report.devices[i], before[i]]);
  }

  get found() {
    return this.matches ? this.matches.reduce((sum, match) => sum + match, 0) : this.report.devices.length;
  }

  showCounts(states) {
    const { counts, registered, problem, revision } = this.report;
    const { leaks_known: leaksKnown, leaks_problem: leaksProblem } = this.report;
    this.pill.className = `pill ${registered ? "good" : "bad"}`;
    this.pill.textContent = registered ? "Registered with the kubelet" : "Not registered";
    this.pill.title = `Revision ${revision} of the device list`;
    this.problem.hidden = !problem;
    this.problem.textContent = problem;
    this.total.replaceChildren(element("span", "name", "Devices"), element("span", "value", number(counts.total)));
    for (const { key } of STATES) {
      const { button, value } = this.chips[key];
      value.textContent = key === "leaked" && !leaksKnown ? "–" : number(counts[key]);
      button.setAttribute("aria-pressed", states.has(key));
      const optional = key === "unknown" || ((key === "free" || key === "allocated") && counts.unknown > 0);
      button.hidden = optional && counts[key] === 0;
      button.classList.toggle("none", counts[key] === 0);
      this.parts[key].style.flexGrow = counts[key];
      this.parts[key].hidden = counts[key] === 0;
    }
    this.map.element.hidden = this.table.element.hidden = this.bar.hidden = counts.total === 0;
    this.empty.hidden = counts.total > 0;
    this.note.hidden = !leaksProblem;
    this.note.textContent = `${leaksProblem.charAt(0).toUpperCase()}${leaksProblem.slice(1)}.`;
  }
}

function matches(device, terms, states) {
  if (states.size && !states.has(device.state)) return false;
  if (!terms.length) return true;
  const text = searchText(device);
  return terms.every((term) => text.includes(term));
}

export function describe(device) {
  const pods = device.pods.map((pod) => `${pod.namespace}/${pod.name} (${pod.container})`);
  return [device.id, STATE[device.state].label.toLowerCase(), device.reason, ...pods].filter(Boolean).join(" · ");
}
