// One resource: its registration, its counts (which are also the legend of the map and its filter), map and table.

import { DeviceMap } from "./map.js";
import { DeviceTable } from "./table.js";
import { COUNTS, STATES, STATE, age, element, glyph, searchText, number } from "./states.js";

export class Resource {
  // Calls `actions.select(resource, index)` and `actions.toggle(state)` on user input.
  constructor(name, actions) {
    this.name = name;
    this.report = null;
    const select = (i) => actions.select(this, i);
    this.pill = element("p", "pill");
    this.problem = element("p", "banner bad");
    this.notice = element("p", "banner note");
    this.legend = element("div", "legend");
    this.legend.setAttribute("role", "group");
    this.legend.setAttribute("aria-label", "Device counts; press one to show only its devices");
    this.chips = Object.fromEntries(COUNTS.map((count) => [count.key, this.chip(count, actions)]));
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
    const counts = [this.problem, this.notice, this.legend, this.bar];
    const devices = [this.map.element, this.empty, this.note, this.table.element];
    this.element = element("section", "card resource", head, ...counts, ...devices);
    this.element.setAttribute("aria-label", name);
  }

  chip({ key, label, meaning, glyph: shape = key }, actions) {
    const value = element("span", "value");
    const button = element("button", `stat ${key}`, element("span", "name", glyph(shape), label), value);
    button.type = "button";
    button.title = meaning;
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
    const { counts, registered, problem, notice, revision, since } = this.report;
    const { leaks_known: leaksKnown } = this.report;
    this.pill.className = `pill ${registered && !this.lacking ? "good" : "bad"}`;
    this.pill.textContent = this.registration;
    const time = new Date(since * 1000).toLocaleString("en-GB");
    this.pill.title = `${registered ? "Registered" : "Not registered"} since ${time}; revision ${revision} of the device list`;
    this.problem.hidden = !problem;
    const start = this.report.problem_since;
    this.problem.replaceChildren(problem, ...(problem && start !== null ? [" (for ", age(start), ")"] : []));
    this.notice.hidden = !notice;
    this.notice.textContent = sentence(notice);
    this.total.replaceChildren(element("span", "name", "Devices"), element("span", "value", number(counts.total)));
    for (const { key } of COUNTS) {
      const { button, value } = this.chips[key];
      value.textContent = key === "leaked" && !leaksKnown ? "–" : number(counts[key]);
      button.setAttribute("aria-pressed", states.has(key));
      const optional =
        key === "unknown" || key === "gone" || ((key === "free" || key === "allocated") && counts.unknown > 0);
      button.hidden = optional && counts[key] === 0;
      button.classList.toggle("none", counts[key] === 0);
    }
    const { devices } = this.report;
    for (const { key } of STATES) {
      const count = devices.reduce((sum, { state }) => sum + (state === key), 0);
      this.parts[key].style.flexGrow = count;
      this.parts[key].hidden = count === 0;
    }
    this.map.element.hidden = this.table.element.hidden = this.bar.hidden = devices.length === 0;
    this.empty.hidden = devices.length > 0;
    this.showNotes();
  }

  // Whether the kubelet had fewer healthy devices than the plugin had published when it answered, or the API server has
  // fewer ResourceSlices than it should have.
  get lacking() {
    const { driver } = this.report;
    if (driver !== null) return driver.slices_confirmed < driver.slices;
    const { kubelet_allocatable: allocatable, kubelet_published: published } = this.report;
    return allocatable !== null && allocatable < published;
  }

  get registration() {
    const { registered, kubelet_allocatable: allocatable, counts, driver, truncated } = this.report;
    if (!registered) return "Not registered";
    if (driver !== null) return `${number(driver.slices_confirmed)} of ${number(driver.slices)} ResourceSlices published`;
    if (allocatable === null) return "Registered with the kubelet";
    return `The kubelet can allocate ${number(allocatable)} of ${number(counts.total - truncated)}`;
  }

  // Says what is wrong with leak detection or provisioning, and how old the result of leak detection is.
  showNotes() {
    const { counts, driver, expected, leaks_problem: leaksProblem, leaks_scanned: scanned } = this.report;
    const notes = [];
    if (driver !== null) {
      notes.push(`DRA driver ${driver.name}, ${number(driver.claims)} prepared claim${driver.claims === 1 ? "" : "s"}. `);
    }
    if (expected !== null && counts.total < expected) {
      notes.push(`${number(expected)} devices are provisioned, ${number(counts.total)} exist. `);
    }
    if (leaksProblem) notes.push(`${sentence(leaksProblem)} `);
    if (scanned !== null) notes.push("Last leak scan: ", age(scanned), " ago.");
    this.note.hidden = notes.length === 0;
    this.note.replaceChildren(...notes);
  }
}

function sentence(text) {
  return text && `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

function matches(device, terms, states) {
  if (states.size && !COUNTS.some(({ key, of }) => states.has(key) && of(device))) return false;
  if (!terms.length) return true;
  const text = searchText(device);
  return terms.every((term) => text.includes(term));
}

export function describe(device) {
  const pods = device.pods.map((pod) => `${pod.namespace}/${pod.name} (${pod.container})`);
  return [device.id, STATE[device.state].label.toLowerCase(), device.reason, ...pods].filter(Boolean).join(" · ");
}
