// One resource: its registration, its counts (which are also the legend and the filter), and its devices as map, by
// pod, or as table.

import { button, element } from "./dom.js";
import { dateTime, number, plural } from "./format.js";
import { DeviceMap } from "./map.js";
import { PodList } from "./pods.js";
import { COUNTS, STATES, glyph, searchText } from "./states.js";
import { DeviceTable } from "./table.js";

const VIEWS = [
  ["map", "Map"],
  ["pods", "By pod"],
  ["table", "Table"],
];

export class Resource {
  // Calls `actions.select(resource, index)`, `actions.toggle(count)`, `actions.view(name)`, `actions.sort(order)`,
  // `actions.selectPod(pod)` and `actions.toggleNamespace(namespace)`.
  constructor(name, actions) {
    this.name = name;
    this.report = null;
    const select = (i) => actions.select(this, i);
    this.pill = element("p", "pill");
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
    this.none = element("p", "unmatched", "No device matches.");
    this.note = element("p", "note-line");
    this.map = new DeviceMap(name, select);
    this.pods = new PodList(actions);
    this.table = new DeviceTable(name, { select, sort: actions.sort });
    this.views = { map: this.map.element, pods: this.pods.element, table: this.table.element };
    this.tabs = element("div", "tabs");
    this.tabs.setAttribute("role", "group");
    this.tabs.setAttribute("aria-label", "Show the devices as");
    this.tabs.append(...VIEWS.map(([key, label]) => {
      const tab = button("tab", () => actions.view(key), label);
      tab.dataset.view = key;
      return tab;
    }));
    const head = element("div", "head", element("h2", "", name), this.pill);
    this.element = element("section", "card resource", head, this.legend, this.bar, this.tabs, this.none, ...Object.values(this.views), this.empty, this.note);
    this.element.setAttribute("aria-label", name);
  }

  chip({ key, label, meaning, glyph: shape = key }, actions) {
    const value = element("span", "value");
    const chip = button(`stat ${key}`, () => actions.toggle(key), element("span", "name", glyph(shape), label), value);
    chip.title = meaning;
    return { button: chip, value };
  }

  // Shows a report, and of its devices what `shown` says: search terms in lower case, a set of counts as filter, the
  // view, the order of the table, closed namespaces and the selected pod. Returns the indices of changed devices.
  update(report, shown) {
    const { terms, counts, view, order, closed, pod } = shown;
    if (this.report !== report) this.matches = undefined;
    this.report = report;
    const key = JSON.stringify([terms, [...counts]]);
    if (this.matches === undefined || key !== this.filterKey) {
      this.filterKey = key;
      const all = terms.length === 0 && counts.size === 0;
      this.matches = all ? null : report.devices.map((device) => matches(device, terms, counts));
    }
    this.showCounts(counts);
    this.showView(view);
    this.none.hidden = this.matches === null || this.matches.includes(true) || view === "pods";
    const changed = this.map.update(report.devices, this.matches);
    if (view === "pods") this.pods.update(report.devices, this.matches, closed, pod);
    if (view === "table") this.table.update(report, this.matches, order, this.map.selected);
    return changed;
  }

  showView(view) {
    const none = this.report.devices.length === 0;
    for (const [key, part] of Object.entries(this.views)) part.hidden = none || key !== view;
    for (const tab of this.tabs.children) tab.setAttribute("aria-pressed", tab.dataset.view === view);
    this.tabs.hidden = this.bar.hidden = none;
    this.empty.hidden = !none;
  }

  // Moves the selection to a device, or to none.
  showSelected(i, view) {
    this.map.show(i);
    if (view === "table" && this.table.report) {
      this.table.update(this.table.report, this.table.matches, this.table.order, i);
      if (i >= 0) this.table.reveal(i);
    }
  }

  get found() {
    return this.matches ? this.matches.reduce((sum, match) => sum + match, 0) : this.report.devices.length;
  }

  showCounts(chosen) {
    const { counts, registered, revision, since, devices } = this.report;
    const good = counts.unhealthy ? "note" : "good";
    this.pill.className = `pill ${registered && !this.lacking ? good : "bad"}`;
    this.pill.textContent = this.registration;
    this.pill.title = `${registered ? "Registered" : "Not registered"} since ${dateTime(since)}; revision ${revision} of the device list`;
    this.total.replaceChildren(element("span", "name", "Devices"), element("span", "value", number(counts.total)));
    for (const { key } of COUNTS) {
      const { button: chip, value } = this.chips[key];
      value.textContent = number(counts[key]);
      chip.setAttribute("aria-pressed", chosen.has(key));
      const optional =
        key === "unknown" || key === "gone" || ((key === "free" || key === "allocated") && counts.unknown > 0);
      chip.hidden = optional && counts[key] === 0;
      chip.classList.toggle("none", counts[key] === 0);
    }
    for (const { key } of STATES) {
      const count = devices.reduce((sum, { state }) => sum + (state === key), 0);
      this.parts[key].style.flexGrow = count;
      this.parts[key].hidden = count === 0;
    }
    this.showDriver();
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

  showDriver() {
    const { driver } = this.report;
    this.note.hidden = driver === null;
    if (driver !== null) this.note.textContent = `DRA driver ${driver.name}, ${plural(driver.claims, "prepared claim")}.`;
  }
}

function matches(device, terms, counts) {
  if (counts.size && !COUNTS.some(({ key, of }) => counts.has(key) && of(device))) return false;
  if (!terms.length) return true;
  const text = searchText(device);
  return terms.every((term) => text.includes(term));
}
