// The panel with the details of the selected device.

import { STATE, age, element, glyph } from "./states.js";

export function showDetail(panel, resource, device) {
  panel.replaceChildren(...(device ? parts(resource, device) : [hint()]));
}

function hint() {
  return element(
    "p",
    "hint",
    "Select a device: click a cell, or press Tab to reach the map and use the arrow keys.",
  );
}

function parts(resource, device) {
  const head = element("h2", "device", device.id);
  const chip = element("p", `chip ${device.state}`, glyph(device.state), STATE[device.state].label);
  const explanation = device.detail || device.reason || STATE[device.state].meaning;
  const rows = [
    ...(device.since === null ? [] : [["For", age(device.since)]]),
    ["Resource", resource.name],
    ["Binder devices", device.binder_devices.join(", ") || "none"],
    ["NUMA node", device.numa.join(", ") || "–"],
    ...(device.spread_device ? [["Spread device", device.spread_device]] : []),
  ];
  const pods = device.pods.map((pod) =>
    block("Allocated to", [
      ["Pod", pod.name],
      ["Namespace", pod.namespace],
      ["Container", pod.container],
      ...(device.allocated_since === null ? [] : [["For", age(device.allocated_since)]]),
    ]),
  );
  const leaks = resource.leaks.filter((leak) => device.binder_devices.includes(leak.binder_device)).map(leakBlock);
  return [head, chip, element("p", "explanation", explanation), list(rows), ...leaks, ...pods];
}

function leakBlock(leak) {
  const started = new Date(leak.started * 1000);
  const container = leak.container ? `container ${leak.container.slice(0, 12)}` : "no container";
  const location = leak.pod_uid ? `pod ${leak.pod_uid}` : container;
  return block(`Held open by process ${leak.pid}`, [
    ["Binder device", leak.binder_device],
    ["Command", leak.command],
    ["Location", location],
    ["User", String(leak.user)],
    ["Leaked for", age(leak.since)],
    ["Started", started.toLocaleString("en-GB")],
  ]);
}

function block(title, rows) {
  return element("div", "block", element("h3", "", title), list(rows));
}

function list(rows) {
  return element("dl", "", ...rows.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]));
}
