// The devices as a table that sorts; cards on a narrow screen. Only visible rows are elements.

import { button, element } from "./dom.js";
import { saveCsv } from "./csv.js";
import { age, dateTime, natural, number } from "./format.js";
import { Rows } from "./rows.js";
import { STATE, glyph, podName } from "./states.js";

const ORDER = { unhealthy: 0, allocated: 1, unknown: 2, free: 3 };
const pods = (device) => device.pods.map(podName).join(", ");

// Each column compares two devices; equal ones keep the order of the device list.
const COLUMNS = [
  { key: "device", label: "Device", compare: () => 0 },
  { key: "state", label: "State", compare: (a, b) => ORDER[a.state] - ORDER[b.state] || natural(a.reason, b.reason) },
  { key: "age", label: "Age", compare: (a, b) => (b.since ?? 0) - (a.since ?? 0) },
  { key: "pod", label: "Allocated to", compare: (a, b) => Number(!a.pods.length) - Number(!b.pods.length) || natural(pods(a), pods(b)) },
  { key: "numa", label: "NUMA", compare: (a, b) => natural(a.numa.join(), b.numa.join()) },
];
const DEFAULT = "state";

export class DeviceTable {
  // Calls `actions.select(index)` and `actions.sort(order)`; an order is the key of a column, with "-" if reversed.
  constructor(name, actions) {
    this.name = name;
    this.actions = actions;
    this.body = element("tbody");
    this.caption = element("p", "caption");
    const save = button("plain", () => this.save(), "Save as CSV");
    const heads = COLUMNS.map((column) => {
      const cell = element("th", column.key, button("sort", () => this.sortBy(column.key), column.label));
      cell.scope = "col";
      return cell;
    });
    this.heads = heads;
    this.table = element("table", "devices", element("thead", "", element("tr", "", ...heads)), this.body);
    this.table.setAttribute("aria-label", `Devices of ${name}`);
    this.scroller = element("div", "scroll table", this.table);
    this.scroller.tabIndex = -1;
    this.element = element("div", "view", element("div", "above", this.caption, save), this.scroller);
    this.rows = new Rows(this.scroller, this.body, "tr", (i, position) => this.row(i, position));
  }

  update(report, matches, order, selected) {
    const current = order || DEFAULT;
    const changed = report !== this.report || matches !== this.matches || current !== this.order;
    Object.assign(this, { report, matches, order: current, selected });
    const { devices } = report;
    if (changed) this.found = sorted(devices, matches, current);
    this.rows.set(this.found);
    this.caption.textContent = this.found.length === devices.length
      ? `All ${number(devices.length)} devices${current === DEFAULT ? ", problems first" : ""}`
      : `${number(this.found.length)} of ${number(devices.length)} devices match`;
    this.table.classList.toggle("no-numa", !devices.some((device) => device.numa.length));
    this.table.setAttribute("aria-rowcount", this.found.length + 1);
    for (const head of this.heads) {
      const key = current.replace("-", "");
      const direction = current.startsWith("-") ? "descending" : "ascending";
      head.setAttribute("aria-sort", head.classList.contains(key) ? direction : "none");
    }
  }

  sortBy(key) {
    const order = this.order === key ? `-${key}` : key;
    this.scroller.scrollTop = 0;
    this.actions.sort(order === DEFAULT ? "" : order);
  }

  // Scrolls to the row of a device.
  reveal(i) {
    this.rows.reveal(this.found.indexOf(i));
  }

  row(i, position) {
    const device = this.report.devices[i];
    const name = button("link", () => this.actions.select(i), device.id);
    const state = element("span", "state", glyph(device.state), STATE[device.state].label);
    if (device.reason) state.append(element("span", "reason", device.reason));
    const owners = device.pods.map((pod) =>
      element("span", "pod", element("small", "", `${pod.namespace}/`), pod.name, element("small", "", ` ${pod.container}`)),
    );
    const parts = [[name], [state], device.since === null ? [] : [age(device.since)], owners, [device.numa.join(", ")]];
    const cells = parts.map((content, column) => element("td", COLUMNS[column].key, ...content));
    const row = element("tr", "", ...cells);
    row.title = [device.detail, ...device.pods.map(podName)].filter(Boolean).join("\n");
    row.dataset.key = device.id;
    row.setAttribute("aria-rowindex", position + 2);
    row.classList.toggle("selected", i === this.selected);
    return row;
  }

  save() {
    const { devices } = this.report;
    const head = ["device", "state", "reason", "detail", "since", "pods", "containers", "numa", "binder_devices"];
    const rows = this.found.map((i) => {
      const device = devices[i];
      const since = device.since === null ? "" : new Date(device.since * 1000).toISOString();
      const containers = device.pods.map((pod) => pod.container).join(" ");
      const owners = device.pods.map(podName).join(" ");
      return [device.id, device.state, device.reason, device.detail, since, owners, containers, device.numa.join(" "), device.binder_devices.join(" ")];
    });
    saveCsv(`${this.name.replaceAll("/", "-")} ${dateTime(Date.now() / 1000).replace(/[/:,]/g, "-")}.csv`, [head, ...rows]);
  }
}

// Returns the indices of the devices that match, in an order.
function sorted(devices, matches, order) {
  const { compare } = COLUMNS.find(({ key }) => key === order.replace("-", "")) ?? COLUMNS[1];
  const sign = order.startsWith("-") ? -1 : 1;
  const found = devices.flatMap((_, i) => (!matches || matches[i] ? [i] : []));
  return found.sort((a, b) => sign * (compare(devices[a], devices[b]) || a - b));
}
