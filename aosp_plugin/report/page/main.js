// The page as a whole: receives reports, keeps what is shown and selected, and updates the parts.

import { readAddress, writeAddress } from "./address.js";
import { poll } from "./connection.js";
import { detailPanel } from "./detail.js";
import { clock, dateTime, duration, number, updateAges } from "./format.js";
import { listenToKeys } from "./keys.js";
import { logList } from "./log.js";
import { isUrgent, problemList } from "./problems.js";
import { Resource } from "./resource.js";
import { podName } from "./states.js";

const byId = (id) => document.getElementById(id);
const NARROW = "(max-width: 640px)";
const PROBLEMS = ["unhealthy", "gone"];

const address = readAddress();
const resources = new Map();
const shown = {
  terms: words(address.q),
  counts: new Set(address.show),
  view: ["map", "pods", "table"].includes(address.view) ? address.view : "",
  order: address.sort,
  closed: new Set(address.closed),
  pod: address.pod.includes("/") ? address.pod : "",
};
let report = null;
let selected = null;  // { resource, id } of a device
if (address.device) selected = { resource: address.resource, id: address.device };
byId("search").value = address.q;

const actions = {
  select(resource, i) {
    Object.assign(shown, { pod: "" });
    selected = { resource: resource.name, id: resource.report.devices[i].id };
    for (const each of resources.values()) each.showSelected(each === resource ? i : -1, view());
    showSelected();
  },
  showDevice(name, id) {
    const resource = resources.get(name) ?? [...resources.values()][0];
    const of = ({ id: own, binder_devices: names }) => own === id || names.includes(id);
    const i = resource?.report.devices.findIndex(of) ?? -1;
    if (i >= 0) actions.select(resource, i);
    else actions.searchFor(id);
  },
  selectPod(pod) {
    clearSelected();
    shown.pod = pod;
    showAll();
  },
  showPod: (pod) => actions.selectPod(pod),
  showProblem({ kind }) {
    const gone = kind === "gone";
    shown.counts = new Set(gone ? [kind] : []);
    shown.view = "table";
    actions.searchFor(gone ? "" : kind);
    actions.reveal();
  },
  // Scrolls to the devices, if their beginning is not in the upper half of the window.
  reveal() {
    const tabs = resources.values().next().value?.tabs;
    const top = tabs?.getBoundingClientRect().top ?? 0;
    if (top < 0 || top > innerHeight / 2) tabs.scrollIntoView();
  },
  searchFor(text) {
    byId("search").value = text;
    shown.terms = words(text);
    if (text) shown.view = "table";
    showAll();
  },
  toggle(count) {
    if (!shown.counts.delete(count)) shown.counts.add(count);
    showAll();
  },
  toggleProblems() {
    const on = PROBLEMS.every((count) => shown.counts.has(count));
    shown.counts = new Set(on ? [] : PROBLEMS);
    showAll();
  },
  view(name) {
    shown.view = name;
    showAll();
  },
  sort(order) {
    shown.order = order;
    showAll();
  },
  toggleNamespace(name) {
    if (!shown.closed.delete(name)) shown.closed.add(name);
    showAll();
  },
  close() {
    clearSelected();
    shown.pod = "";
    showAll();
  },
};

const showProblems = problemList(byId("problems"), actions);
const showLog = logList(byId("log"));
const showDetail = detailPanel(byId("detail"), actions);

// A map of many devices is too long for a narrow screen.
const view = () => shown.view || (matchMedia(NARROW).matches ? "table" : "map");

function words(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

function onReport(newReport) {
  const before = report;
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
  showAll();
  announce(before);
  if (!before) performance.mark("ready");
  document.documentElement.dataset.ready = "true";
}

// Shows the report with the current search, filter and view.
function showAll() {
  if (!report) return;
  for (const current of report.resources) {
    resources.get(current.name).update(current, { ...shown, view: view() });
  }
  const found = [...resources.values()].reduce((sum, resource) => sum + resource.found, 0);
  byId("found").textContent = shown.terms.length || shown.counts.size ? `${number(found)} found` : "";
  keepSelected();
}

// A selected device stays selected when its index changes. If it is removed, the selection is cleared.
function keepSelected() {
  const resource = resources.get(selected?.resource || report.resources[0]?.name);
  const i = selected && resource ? resource.report.devices.findIndex((device) => device.id === selected.id) : -1;
  selected = i < 0 ? null : { ...selected, resource: resource.name };
  for (const each of resources.values()) {
    const index = each === resource ? i : -1;
    if (each.map.selected === index) continue;
    each.map.selected = index;
    each.map.place();
  }
  showSelected();
}

function clearSelected() {
  selected = null;
  for (const resource of resources.values()) resource.showSelected(-1, view());
}

function showSelected() {
  const resource = resources.get(selected?.resource);
  const device = resource?.report.devices[resource.map.selected] ?? null;
  const { pod } = shown;
  document.body.classList.toggle("has-selection", Boolean(device || pod));
  const devices = !pod || !report ? [] : report.resources.flatMap(({ name, devices: all }) =>
    all.filter((each) => each.pods.some((owner) => podName(owner) === pod)).map((each) => [name, each]),
  );
  showDetail(resource?.name, device, pod, devices, report?.node);
  const { counts, closed, order } = shown;
  writeAddress({
    q: byId("search").value.trim(),
    show: counts,
    view: shown.view,
    sort: order,
    closed,
    resource: device ? resource.name : "",
    device: device?.id ?? "",
    pod,
  });
}

function showHeader() {
  const { node, version, problems, log, allocations } = report;
  byId("node").textContent = node;
  byId("version").textContent = version;
  const urgent = problems.filter(isUrgent).length;
  document.title = `${urgent ? `(${urgent}) ` : ""}${node} · aosp-device-plugin`;
  showUptime();
  byId("unknown").hidden = allocations.known || problems.some(({ kind }) => kind === "allocations-unknown");
  byId("unknown").textContent = `Device allocations are unknown: ${allocations.problem}.`;
  const summary = report.resources.map(({ name, counts }) => `${name}: ${number(counts.healthy)} of ${number(counts.total)} devices are healthy`);
  showProblems(problems, node, report.runbook_url, `${summary.join("; ")}.`);
  showLog(log);
}

function showUptime() {
  if (!report) return;
  updateAges();
  byId("uptime").textContent = `Up ${duration(Date.now() / 1000 - report.started)}`;
  byId("uptime").title = `since ${dateTime(report.started)}`;
}

// Announces the latest record of the log to screen readers.
function announce(before) {
  const [latest] = report.log;
  if (!before || !latest || latest.time === before.log[0]?.time) return;
  byId("announcer").textContent = `${latest.resource || "Plugin"}: ${latest.message}`;
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
  const at = found.findIndex(([resource, i]) => resource.name === selected?.resource && i === resource.map.selected);
  const next = at < 0 ? (backwards ? found.length - 1 : 0) : (at + (backwards ? -1 : 1) + found.length) % found.length;
  actions.select(...found[next]);
}

byId("search").addEventListener("input", (event) => {
  shown.terms = words(event.target.value);
  showAll();
});
byId("search").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !report) return;
  actions.reveal();
  step(event.shiftKey);
});
byId("help").addEventListener("click", listenToKeys(actions));
matchMedia(NARROW).addEventListener("change", showAll);
showDetail(null, null, "", [], "");
poll(onReport, onState);
setInterval(showUptime, 5_000);
