// The page as a whole: takes reports, keeps what the user looks for and has selected, and tells the parts.

import { follow } from "./connection.js";
import { showDetail } from "./detail.js";
import { Resource } from "./resource.js";
import { STATE, clock, element, glyph, number } from "./states.js";

const MOST_CHANGES = 8;
const byId = (id) => document.getElementById(id);

const resources = new Map();
const states = new Set();
let terms = [];
let report = null;
let selected = null;  // { resource, id }

const actions = {
  select(resource, i) {
    selected = { resource, id: resource.report.devices[i].id };
    for (const other of resources.values()) other.map.show(other === resource ? i : -1);
    showSelected();
  },
  toggle(state) {
    if (!states.delete(state)) states.add(state);
    showAll();
  },
};

function told(news) {
  const first = report === null;
  report = news;
  showHeader();
  for (const [name, resource] of resources) {
    if (news.resources.some((one) => one.name === name)) continue;
    resource.element.remove();
    resources.delete(name);
  }
  for (const { name } of news.resources) {
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

// Shows the report with what is looked for; returns what has changed since it was shown last.
function showAll() {
  if (!report) return [];
  const changes = report.resources.flatMap((one) => resources.get(one.name).update(one, terms, states));
  const looking = terms.length || states.size;
  const found = [...resources.values()].reduce((sum, resource) => sum + resource.found, 0);
  byId("found").textContent = looking ? `${number(found)} found` : "";
  keepSelected();
  return changes;
}

// A device keeps being selected when others before it come and go; one that is gone is not.
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
  if (key === shownDetail) return;  // it is read out when it changes
  shownDetail = key;
  showDetail(byId("detail"), resource?.report, device);
}

function showHeader() {
  byId("node").textContent = report.node;
  byId("version").textContent = report.version;
  const problems = report.resources.filter((one) => one.problem).length;
  document.title = `${problems ? "⚠ " : ""}${report.node} · aosp-device-plugin`;
  byId("watching").textContent = report.watching === "inotify" ? "Follows file events" : "Polls: inotify can't be had";
  const started = new Date(report.started * 1000);
  const today = started.toDateString() === new Date().toDateString();
  const day = started.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  byId("since").textContent = today ? `Since ${clock(started)}` : `Since ${day}, ${clock(started)}`;
  byId("since").title = started.toLocaleString("en-GB");
  byId("unknown").hidden = report.allocations.known;
  byId("unknown").textContent = `Which pod has which device is not known: ${report.allocations.problem}.`;
}

// Adds to the list of changes, and has the first of them read out.
function showChanges(changes) {
  const list = byId("changes");
  list.querySelector(".empty")?.remove();
  const shown = changes.length > MOST_CHANGES ? changes.slice(0, MOST_CHANGES - 1) : changes;
  const more = changes.length - shown.length;
  const rows = shown.map(([device, before]) => {
    const now = [glyph(before.state), "→", glyph(device.state), state(device)];
    return change(device.id, element("span", "now", ...now));
  });
  list.prepend(...rows, ...(more ? [change(`and ${number(more)} more`)] : []));
  while (list.children.length > MOST_CHANGES) list.lastElementChild.remove();
  const [device] = changes[0];
  const others = changes.length > 1 ? ` and ${number(changes.length - 1)} more have changed` : "";
  byId("announcer").textContent = `${device.id}: ${state(device)}${others}`;
}

function change(what, ...parts) {
  return element("li", "", element("span", "what", what), element("time", "", clock(new Date())), ...parts);
}

function state(device) {
  return device.reason || STATE[device.state].label.toLowerCase();
}

function connection(now, why = "", since = null) {
  byId("live").dataset.state = now;
  byId("live-text").textContent = { live: "Live", paused: "Paused", lost: "Connection lost" }[now];
  document.body.classList.toggle("stale", now === "lost");
  const lost = byId("lost");
  if (now === "lost") {
    const text = `Connection lost since ${clock(since)}: ${why}. What is shown is as of then.`;
    if (lost.textContent !== text) lost.textContent = text;
  }
  lost.hidden = now !== "lost";
}

// Selects the next device that is found, or the one before, of any resource.
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
follow(told, connection);
