// The panel with the details of the selected device or pod; on a narrow screen, a sheet that can be closed.

import { button, command, element, onChange } from "./dom.js";
import { age, number, plural } from "./format.js";
import { STATE, glyph, podName } from "./states.js";

const MAX_DEVICES = 60;

// Calls `actions.close()`, `actions.showDevice(resource, id)`, `actions.showPod(pod)` and `actions.searchFor(text)`.
// Returns a function that shows a device with the name of its resource, a pod's name with its devices as pairs of resource and
// device, or, without arguments, nothing.
export function detailPanel(panel, actions) {
  return onChange((resource, device, pod, devices, node) => {
    const shown = Boolean(device || pod);
    panel.classList.toggle("open", shown);
    panel.setAttribute("aria-label", device ? "Selected device" : pod ? "Selected pod" : "Details");
    if (!shown) {
      panel.replaceChildren(hint());
      return;
    }
    const close = button("close", actions.close, "×");
    close.setAttribute("aria-label", "Close the details");
    panel.replaceChildren(close, ...(device ? deviceParts(resource, device, actions) : podParts(pod, devices, node, actions)));
    panel.scrollTop = 0;
  });
}

function hint() {
  const text = "Select a device or a pod to see its details. On the map, the arrow keys move from device to device. ";
  return element("p", "hint", text, element("kbd", "", "?"), " lists all keys.");
}

function deviceParts(resource, device, actions) {
  const head = element("h2", "device", device.id);
  const chip = element("p", `chip ${device.state}`, glyph(device.state), STATE[device.state].label);
  if (device.since !== null) chip.append(element("span", "muted", "for ", age(device.since)));
  const explanation = device.detail || device.reason || STATE[device.state].meaning;
  const rows = [
    ["Resource", resource],
    ["Binder devices", device.binder_devices.join(", ") || "none"],
    ...(device.numa.length ? [["NUMA node", device.numa.join(", ")]] : []),
    ...(device.spread_devices.length ? [["Spread devices", device.spread_devices.join(", ")]] : []),
  ];
  const pods = device.pods.map((pod) =>
    block("Allocated to", [
      ["Pod", button("link", () => actions.showPod(podName(pod)), pod.name)],
      ["Namespace", pod.namespace],
      ["Container", pod.container],
    ], command(`kubectl -n ${pod.namespace} describe pod ${pod.name}`)),
  );
  return [head, chip, element("p", "explanation", explanation), ...pods, block("Device", rows)];
}

function podParts(pod, devices, node, actions) {
  const [namespace, name] = pod.split("/");
  const parts = [element("h2", "device", name), element("p", "explanation", "Pod in namespace ", element("strong", "", namespace))];
  if (!devices.length) parts.push(element("p", "explanation", "It has no device on this node any more."));
  const shown = devices.slice(0, MAX_DEVICES).map(([resource, device]) =>
    element(
      "li",
      "",
      glyph(device.state),
      button("link", () => actions.showDevice(resource, device.id), device.id),
      element("span", "muted", device.reason || STATE[device.state].label.toLowerCase()),
    ),
  );
  const times = devices.filter(([, device]) => device.state === "allocated").map(([, device]) => device.since).filter((time) => time !== null);
  const containers = new Set(devices.flatMap(([, device]) => device.pods.filter((owner) => podName(owner) === pod).map((owner) => owner.container)));
  const rows = [
    ["Containers", [...containers].join(", ")],
    ["Node", node],
    ...(times.length ? [["For", age(times.reduce((a, b) => Math.min(a, b)))]] : []),
  ];
  const more = devices.length > shown.length
    ? [button("plain", () => actions.searchFor(pod), `Show all ${number(devices.length)} in the table`)]
    : [];
  if (devices.length) {
    const list = element("ul", "device-list", ...shown);
    parts.push(element("div", "block", element("h3", "", plural(devices.length, "device")), list, ...more));
    parts.push(block("Pod", rows, command(`kubectl -n ${namespace} describe pod ${name}`)));
  }
  return parts;
}

function block(title, rows, ...more) {
  return element("div", "block", element("h3", "", title), list(rows), ...more);
}

function list(rows) {
  return element("dl", "", ...rows.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", value)]));
}
