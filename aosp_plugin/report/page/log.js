// The latest records of the plugin's log, newest first.

import { button, element, onChange } from "./dom.js";
import { clock, number } from "./format.js";

const SHOWN = matchMedia("(max-width: 640px)").matches ? 6 : 15;

export function logList(section) {
  let all = false;
  let shown = [];
  const list = element("ol", "log");
  const more = button("plain", () => {
    all = !all;
    render(shown, all);
  });
  section.append(list, more);
  const render = onChange((records) => {
    const day = new Date().toDateString();
    list.replaceChildren(...records.slice(0, all ? records.length : SHOWN).map((record) => item(record, day)));
    more.hidden = records.length <= SHOWN;
    more.textContent = all ? "Show fewer" : `Show all ${number(records.length)}`;
  });
  return (records) => {
    shown = records;
    render(records, all);
  };
}

function item({ time: seconds, level, message, resource, fields }, day) {
  const date = new Date(seconds * 1000);
  const today = date.toDateString() === day;
  const time = element("time", "", today ? clock(date) : date.toLocaleString("sv-SE", { dateStyle: "short", timeStyle: "short" }));
  time.dateTime = date.toISOString();
  time.title = date.toLocaleString("sv-SE");
  const values = Object.entries({ ...(resource && { resource }), ...fields }).map(([name, value]) => `${name}=${value}`);
  return element("li", level, element("span", "what", message), time, element("span", "fields", values.join(" ")));
}
