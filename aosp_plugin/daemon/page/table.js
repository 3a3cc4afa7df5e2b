// The devices as a table, problems first.

import { STATE, age, element, glyph, number } from "./states.js";

const INITIAL_ROWS = 12;
const MORE_ROWS = 100;
const ORDER = { leaked: 0, unhealthy: 1, allocated: 2, unknown: 3, free: 4 };

export class DeviceTable {
  constructor(select) {
    this.select = select;
    this.shown = INITIAL_ROWS;
    this.body = element("tbody");
    this.caption = element("caption");
    const head = ["Device", "State", "Age", "Allocated to", "NUMA"].map((name) => {
      const cell = element("th", "", name);
      cell.scope = "col";
      return cell;
    });
    this.more = element("button", "more");
    this.more.type = "button";
    this.more.addEventListener("click", () => {
      this.shown += MORE_ROWS;
      this.update(this.report, this.matches);
    });
    const heading = element("thead", "", element("tr", "", ...head));
    this.table = element("table", "devices", this.caption, heading, this.body);
    this.element = element("div", "scroll", this.table, this.more);
  }

  update(report, matches) {
    if (matches !== this.matches) this.shown = Math.min(this.shown, INITIAL_ROWS + MORE_ROWS);
    Object.assign(this, { report, matches });
    const { devices } = report;
    const found = devices.flatMap((_, i) => (!matches || matches[i] ? [i] : []));
    const sorted = found.sort((a, b) => ORDER[devices[a].state] - ORDER[devices[b].state] || a - b);
    const rows = sorted.slice(0, this.shown).map((i) => this.row(devices[i], i));
    this.body.replaceChildren(...rows);
    this.caption.textContent = found.length === devices.length
      ? `All ${number(found.length)} devices, problems first`
      : `${number(found.length)} of ${number(devices.length)} devices match`;
    this.table.classList.toggle("no-numa", !devices.some((device) => device.numa.length));
    const left = found.length - rows.length;
    this.more.hidden = left === 0;
    this.more.textContent = left > MORE_ROWS ? `Show ${MORE_ROWS} more of ${number(left)}` : `Show the remaining ${number(left)}`;
  }

  row(device, i) {
    const name = element("button", "link", device.id);
    name.type = "button";
    name.addEventListener("click", () => this.select(i));
    const state = element("span", "state", glyph(device.state), STATE[device.state].label);
    const leak = this.report.leaks.find(({ binder_device: name }) => device.binder_devices.includes(name));
    const reason = leak ? `held open by process ${leak.pid}` : device.reason;
    if (reason) state.append(element("span", "reason", reason));
    const pods = device.pods.map((pod) => {
      const container = element("small", "", ` ${pod.container}`);
      return element("span", "pod", `${pod.namespace}/${pod.name}`, container);
    });
    const cells = [[name], [state], device.since === null ? [] : [age(device.since)], pods, [device.numa.join(", ")]];
    return element("tr", "", ...cells.map((parts) => element("td", "", ...parts)));
  }
}
