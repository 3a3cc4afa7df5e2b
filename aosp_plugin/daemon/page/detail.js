// The panel that tells everything of the device that is selected.

import { STATE, element, glyph } from "./states.js";

export function showDetail(panel, resource, device) {
  panel.replaceChildren(...(device ? parts(resource, device) : [hint()]));
}

function hint() {
  return element(
    "p",
    "hint",
    "Select a device: click a cell, or go to the map with Tab and move with the arrow keys.",
  );
}

function parts(resource, device) {
  const head = element("h2", "device", device.id);
  const chip = element("p", `chip ${device.state}`, glyph(device.state), STATE[device.state].label);
  const why = device.detail || device.reason || STATE[device.state].means;
  const rows = [
    ["Resource", resource.name],
    ["Nodes", device.nodes.length ? device.nodes.join(", ") : "none there"],
    ["NUMA", device.numa.length ? device.numa.join(", ") : "not told"],
  ];
  const pods = device.pods.map((pod) =>
    block("Held by", [["Pod", pod.name], ["Namespace", pod.namespace], ["Container", pod.container]]),
  );
  const leaks = resource.leaks.filter((leak) => device.nodes.includes(leak.node)).map(leakBlock);
  return [head, chip, element("p", "why", why), list(rows), ...leaks, ...pods];
}

function leakBlock(leak) {
  const started = new Date(leak.started * 1000);
  const container = leak.container ? `container ${leak.container.slice(0, 12)}` : "no container";
  const where = leak.pod_uid ? `pod ${leak.pod_uid}` : container;
  return block(`Leaked to process ${leak.pid}`, [
    ["Node", leak.node],
    ["Command", leak.command],
    ["In", where],
    ["User", String(leak.user)],
    ["Started", started.toLocaleString("en-GB")],
  ]);
}

function block(title, rows) {
  return element("div", "block", element("h3", "", title), list(rows));
}

function list(rows) {
  return element("dl", "", ...rows.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]));
}
