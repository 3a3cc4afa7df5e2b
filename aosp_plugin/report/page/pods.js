// Phones by namespace and pod: which pod has which devices, and since when.

import { button, element } from "./dom.js";
import { age, byPodName, natural, number, plural, ranges } from "./format.js";
import { Rows } from "./rows.js";
import { glyph, hasProblem, podName } from "./states.js";

export class PodList {
  // Calls `actions.selectPod(pod)` and `actions.toggleNamespace(namespace)`.
  constructor(actions) {
    this.actions = actions;
    this.list = element("div", "pod-list");
    this.list.setAttribute("role", "list");
    this.caption = element("p", "caption");
    this.scroller = element("div", "scroll pods", this.list);
    this.scroller.tabIndex = -1;
    this.element = element("div", "view", this.caption, this.scroller);
    this.rows = new Rows(this.scroller, this.list, "div", (row) => (row.pods ? this.header(row) : this.row(row)));
  }

  // Shows the pods of the devices that match; `closed` namespaces show only their name, `selected` is a pod's name.
  update(devices, matches, closed, selected) {
    this.selected = selected;
    this.closed = closed;
    const pods = podsOf(devices, matches);
    const namespaces = Map.groupBy?.(pods, (pod) => pod.namespace) ?? groups(pods);
    const rows = [...namespaces]
      .sort(([a], [b]) => natural(a, b))
      .flatMap(([name, of]) => [{ namespace: name, pods: of }, ...(closed.has(name) ? [] : of)]);
    this.caption.textContent = pods.length
      ? `${plural(pods.length, "pod")} in ${plural(namespaces.size, "namespace")}`
      : "No pod has a matching device.";
    this.scroller.hidden = pods.length === 0;
    this.rows.set(rows);
  }

  header({ namespace, pods }) {
    const open = !this.closed.has(namespace);
    const devices = pods.reduce((sum, pod) => sum + pod.devices.length, 0);
    const problems = pods.filter((pod) => pod.problems).length;
    const facts = [plural(pods.length, "pod"), plural(devices, "device")];
    const name = button(
      "namespace",
      () => this.actions.toggleNamespace(namespace),
      element("span", "arrow", open ? "▾" : "▸"),
      element("strong", "", namespace),
      element("span", "muted", facts.join(", ")),
      ...(problems ? [element("span", "bad-text", `${number(problems)} with problems`)] : []),
    );
    name.setAttribute("aria-expanded", open);
    const row = element("div", "pod-row group", name);
    row.setAttribute("role", "listitem");
    row.dataset.key = `namespace ${namespace}`;
    return row;
  }

  row(pod) {
    const key = `${pod.namespace}/${pod.name}`;
    const shapes = pod.devices.slice(0, 12).map((device) => glyph(device.state));
    const more = pod.devices.length > shapes.length ? [element("span", "muted", `+${pod.devices.length - shapes.length}`)] : [];
    const name = element("span", "pod-name", pod.name, element("span", "muted", ` ${pod.containers.join(", ")}`));
    const ids = element("span", "ids", ranges(pod.devices.map((device) => device.id)).join(", "));
    const state = pod.problems ? element("span", "bad-text", pod.problems) : "";
    const facts = element("span", "pod-facts", state, pod.since === null ? "" : age(pod.since));
    const main = button("pod-button", () => this.actions.selectPod(key), name, facts, element("span", "shapes", ...shapes, ...more), ids);
    const row = element("div", "pod-row", main);
    row.classList.toggle("selected", key === this.selected);
    row.setAttribute("role", "listitem");
    row.dataset.key = key;
    return row;
  }
}

function groups(pods) {
  const found = new Map();
  for (const pod of pods) found.set(pod.namespace, [...(found.get(pod.namespace) ?? []), pod]);
  return found;
}

// Returns the pods that have matching devices, those with problems first.
function podsOf(devices, matches) {
  const pods = new Map();
  devices.forEach((device, i) => {
    if (matches && !matches[i]) return;
    for (const owner of device.pods) {
      const key = podName(owner);
      if (!pods.has(key)) pods.set(key, { ...owner, containers: new Set(), devices: new Set() });
      pods.get(key).containers.add(owner.container);
      pods.get(key).devices.add(device);
    }
  });
  return [...pods.values()]
    .map(({ namespace, name, containers, devices: own }) => {
      const all = [...own];
      const times = all.filter((device) => device.state === "allocated").map((device) => device.since).filter((time) => time !== null);
      return {
        namespace,
        name,
        containers: [...containers],
        devices: all,
        since: times.length ? times.reduce((a, b) => Math.min(a, b)) : null,
        problems: summary(all.filter(hasProblem)),
      };
    })
    .sort((a, b) => Number(!a.problems) - Number(!b.problems) || byPodName(a.name, b.name));
}

// Returns what is wrong with devices: "1 missing, 2 gone".
function summary(devices) {
  const counts = new Map();
  for (const { reason } of devices) counts.set(reason, (counts.get(reason) ?? 0) + 1);
  return [...counts].map(([name, count]) => `${count} ${name}`).join(", ");
}
