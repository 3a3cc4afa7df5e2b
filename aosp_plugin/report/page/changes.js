// The last changes that the plugin has recorded, newest first.

import { button, element, onChange } from "./dom.js";
import { clock, number } from "./format.js";
import { glyph } from "./states.js";

const SHOWN = matchMedia("(max-width: 640px)").matches ? 6 : 15;
const SHAPES = {
  allocated: "allocated",
  released: "free",
  healthy: "free",
  added: "free",
  registered: "free",
  "kubelet-has-all": "free",
  "scans-succeed": "free",
  unhealthy: "unhealthy",
  removed: "unhealthy",
  unregistered: "error",
  "kubelet-lacks": "error",
  "scans-fail": "error",
};

// Calls `actions.showDevice(resource, id)` and `actions.showPod(pod)`.
export function changeList(section, actions) {
  let all = false;
  let shown = [];
  const list = element("ol", "changes");
  list.id = "changes";
  const more = button("plain", () => {
    all = !all;
    render(shown, all);
  });
  section.append(list, more);
  const render = onChange((changes) => {
    const day = new Date().toDateString();
    list.replaceChildren(...changes.slice(0, all ? changes.length : SHOWN).map((change) => item(change, day, actions)));
    if (!changes.length) list.append(element("li", "empty", "No changes since the plugin started."));
    more.hidden = changes.length <= SHOWN;
    more.textContent = all ? "Show fewer" : `Show all ${number(changes.length)}`;
  });
  return (changes) => {
    shown = changes;
    render(changes, all);
  };
}

function item(change, day, actions) {
  const date = new Date(change.time * 1000);
  const today = date.toDateString() === day;
  const time = element("time", "", today ? clock(date) : date.toLocaleString("en-GB", { dateStyle: "short", timeStyle: "short" }));
  time.dateTime = date.toISOString();
  time.title = date.toLocaleString("en-GB");
  const text = element("span", "transition", glyph(SHAPES[change.event] ?? "unknown"), element("span", "", words(change, actions)));
  return element("li", "", title(change, actions), time, text);
}

// Returns what has changed: the first devices, or the resource.
function title({ resource, devices, count }, actions) {
  if (!devices.length) return element("span", "what", resource || "Plugin");
  const [first] = devices;
  const name = button("link what", () => actions.showDevice(resource, first), first);
  name.title = devices.join(", ");
  return element("span", "", name, ...(count > 1 ? [element("span", "muted", ` and ${number(count - 1)} more`)] : []));
}

function words({ text, pod }, actions) {
  if (!pod || !text.endsWith(pod)) return text;
  return element("span", "", text.slice(0, -pod.length), button("link", () => actions.showPod(pod), pod));
}
