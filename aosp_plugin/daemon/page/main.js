// The page as a whole: receives reports, keeps search terms, filter and selection, and updates the parts.

import { poll } from "./connection.js";
import { showDetail } from "./detail.js";
import { Resource } from "./resource.js";
import { STATE, clock, duration, element, glyph, number, updateAges } from "./states.js";

const MAX_CHANGES = 8;
const byId = (id) => document.getElementById(id);

const resources = new Map();
const states = new Set();
let terms = [];
let report = null;
let selected = null;  // { resource, id }

const actions = {
  select(resource, i) {
    selected = { resource, id: resource.report.devices[i].id };
    for (const each of resources.values()) each.map.show(each === resource ? i : -1);
    showSelected();
  },
  toggle(state) {
    if (!states.delete(state)) states.add(state);
    showAll();
  },
};

function onReport(newReport) {
  const first = report === null;
  report = newReport;
  showHeader();
  for (const [name, resource] of resources) {
    if (report.resources.some((current) => current.name === name)) continue;
    resource.element.remove();
    resources.delete(name);
  }
  for (const { name } of report.resources) {
    if (resources.has(name)) continue;
    const resource = new Resource(name, actions);
    resources.set(name, resource);
    byId("resources").append(resource.element);
  }
  const changes = showAll();
  if (!first && changes.length) showChanges(changes);
  if (first) performance.mark("ready");
  document.documentElement.dataset.ready = "true";
}

// Shows the report with the current search and filter. Returns the devices that have changed since the last call.
function showAll() {
  if (!report) return [];
  const changes = report.resources.flatMap((current) => resources.get(current.name).update(current, terms, states));
  const searching = terms.length || states.size;
  const found = [...resources.values()].reduce((sum, resource) => sum + resource.found, 0);
  byId("found").textContent = searching ? `${number(found)} found` : "";
  keepSelected();
  return changes;
}

// A selected device stays selected when its index changes. If it is removed, the selection is cleared.
function keepSelected() {
  if (selected) {
    const { resource, id } = selected;
    const known = resources.get(resource.name) === resource;
    const i = known ? resource.report.devices.findIndex((device) => device.id === id) : -1;
    if (i < 0) selected = null;
    if (known && resource.map.selected !== i) {
      resource.map.selected = i;
      resource.map.place();
    }
  }
  showSelected();
}

let shownDetail = "";

function showSelected() {
  const resource = selected?.resource;
  const device = resource?.report.devices[resource.map.selected];
  const key = JSON.stringify([resource?.name, device, resource?.report.leaks]);
  if (key === shownDetail) return;  // a screen reader announces each update
  shownDetail = key;
  showDetail(byId("detail"), resource?.report, device);
}

function showHeader() {
  byId("node").textContent = report.node;
  byId("version").textContent = report.version;
  const problems = report.resources.some((resource) => resource.problem);
  document.title = `${problems ? "⚠ " : ""}${report.node} · aosp-device-plugin`;
  byId("watching").textContent = report.watching;
  byId("watching").title = report.watching === "inotify"
    ? "File changes are detected with inotify"
    : "inotify is unavailable, so directories are polled";
  showUptime();
  byId("unknown").hidden = report.allocations.known;
  byId("unknown").textContent = `Device allocations are unknown: ${report.allocations.problem}.`;
}

function showUptime() {
  if (!report) return;
  updateAges();
  byId("uptime").textContent = `Up ${duration(Date.now() / 1000 - report.started)}`;
  byId("uptime").title = `since ${new Date(report.started * 1000).toLocaleString("en-GB")}`;
}

// Adds to the list of changes, and announces the first one to screen readers.
function showChanges(changes) {
  const list = byId("changes");
  list.querySelector(".empty")?.remove();
  const shown = changes.length > MAX_CHANGES ? changes.slice(0, MAX_CHANGES - 1) : changes;
  const more = changes.length - shown.length;
  const rows = shown.map(([device, before]) => {
    const transition = [glyph(before.state), "→", glyph(device.state), stateName(device)];
    return change(device.id, element("span", "transition", ...transition));
  });
  list.prepend(...rows, ...(more ? [change(`and ${number(more)} more`)] : []));
  while (list.children.length > MAX_CHANGES) list.lastElementChild.remove();
  const [device] = changes[0];
  const others = changes.length > 1 ? ` and ${number(changes.length - 1)} more` : "";
  byId("announcer").textContent = `${device.id}: ${stateName(device)}${others}`;
}

function change(title, ...parts) {
  return element("li", "", element("span", "what", title), element("time", "", clock(new Date())), ...parts);
}

function stateName(device) {
  return device.reason || STATE[device.state].label.toLowerCase();
}

function onState(state, reason = "", since = null) {
  byId("live").dataset.state = state;
  byId("live-text").textContent = { live: "Live", paused: "Paused", lost: "Connection lost" }[state];
  document.body.classList.toggle("stale", state === "lost");
  const lost = byId("lost");
  if (state === "lost") {
    const text = `Connection lost since ${clock(since)}: ${reason}. The data shown is from before.`;
    if (lost.textContent !== text) lost.textContent = text;
  }
  lost.hidden = state !== "lost";
}

// Selects the next matching device of any resource, or the previous one.
function step(backwards) {
  const found = [...resources.values()].flatMap((resource) =>
    resource.report.devices.flatMap((_, i) => (!resource.matches || resource.matches[i] ? [[resource, i]] : [])),
  );
  if (!found.length) return;
  const at = found.findIndex(([resource, i]) => resource === selected?.resource && i === resource.map.selected);
  const next = at < 0 ? (backwards ? found.length - 1 : 0) : (at + (backwards ? -1 : 1) + found.length) % found.length;
  actions.select(...found[next]);
}

byId("search").addEventListener("input", (event) => {
  terms = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  showAll();
});
byId("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && report) step(event.shiftKey);
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    byId("search").focus();
  } else if (event.key === "Escape" && !typing && selected) {
    for (const resource of resources.values()) resource.map.show(-1);
    selected = null;
    showSelected();
  }
});

showDetail(byId("detail"), null, null);
poll(onReport, onState);
setInterval(showUptime, 5_000);
