// What is wrong, most urgent first: reason in words, since when, which devices and pods, and what to do.

import { button, command, element, onChange } from "./dom.js";
import { age, number, plural } from "./format.js";
import { glyph } from "./states.js";

const MORE_PODS = 4;

export const isUrgent = ({ severity }) => severity !== "notice";

// Calls `actions.showDevice(resource, id)`, `actions.showPod(pod)` and `actions.showProblem(problem)`.
export function problemList(card, actions) {
  return onChange((problems, node, runbookUrl, summary) => {
    const urgent = problems.filter(isUrgent).length;
    const severity = problems[0]?.severity ?? "none";
    card.className = `card problems ${severity}`;
    if (!problems.length) {
      card.replaceChildren(element("p", "fine", element("strong", "", "No problems. "), summary));
      return;
    }
    const title = urgent ? plural(urgent, "problem") : plural(problems.length, "notice");
    const items = problems.map((problem) => item(problem, runbookUrl, actions));
    const errors = problems.filter((problem) => problem.severity === "error").length;
    if (errors) {
      items[errors - 1].append(element("p", "hint", "To keep new pods off this node: ", command(`kubectl cordon ${node}`)));
    }
    card.replaceChildren(element("h2", "", title), element("ol", "", ...items));
  });
}

function item(problem, runbookUrl, actions) {
  const { severity, summary, since, resource, action } = problem;
  const head = element("p", "what", element("strong", "", summary));
  const facts = element("p", "facts-line");
  const marks = { error: "error", warning: "unhealthy", notice: "unknown" };
  const label = element("span", `severity ${severity}`, glyph(marks[severity]), severity);
  facts.append(label);
  if (since !== null) facts.append(element("span", "", "for ", age(since)));
  if (resource) facts.append(element("span", "", resource));
  const advice = element("details", "action", element("summary", "", "What to do"), action);
  advice.open = !matchMedia("(max-width: 640px)").matches;
  if (runbookUrl) {
    const link = element("a", "", "Runbook");
    link.href = `${runbookUrl}#${problem.runbook}`;
    link.rel = "noopener noreferrer";
    link.target = "_blank";
    advice.append(" ", link);
  }
  return element("li", severity, element("div", "", head, facts, ...links(problem, actions)), advice);
}

// Returns a line with the first devices, and one with the first pods.
function links(problem, actions) {
  const { resource, devices, count, pods, more_pods: morePods } = problem;
  const lines = [];
  if (devices.length) {
    const shown = devices.slice(0, 6).map((id) => button("tag", () => actions.showDevice(resource, id), id));
    const all = button("link", () => actions.showProblem(problem), count > shown.length ? `show all ${number(count)}` : "show in the table");
    lines.push(element("p", "tags", element("span", "term", "Devices"), ...shown, all));
  }
  if (pods.length) {
    const shown = pods.slice(0, MORE_PODS).map((pod) => button("tag pod-tag", () => actions.showPod(pod), pod));
    const left = pods.length - shown.length + morePods;
    const more = left ? [element("span", "term", `and ${number(left)} more`)] : [];
    lines.push(element("p", "tags", element("span", "term", "Pods"), ...shown, ...more));
  }
  return lines;
}
