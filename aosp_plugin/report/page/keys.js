// Keys of the page, and the dialog that lists them.

import { button, element } from "./dom.js";

const HELP = [
  ["/", "Search by device, pod, namespace, container or reason"],
  ["Enter", "In the search: select the next device that matches; with Shift, the previous one"],
  ["m p t", "Show the devices as map, by pod, or as table"],
  ["u", "Show only unhealthy and gone devices; again: all"],
  ["Arrow keys", "On the map: move from device to device; also Home, End, Page Up, Page Down"],
  ["Escape", "Close the details"],
  ["?", "Show these keys"],
];

// Calls `actions.view(name)`, `actions.toggleProblems()`, `actions.reveal()` and `actions.close()`. Returns a function that opens the help.
export function listenToKeys(actions) {
  const dialog = helpDialog();
  document.body.append(dialog);
  const open = () => !dialog.open && dialog.showModal();
  const search = document.getElementById("search");
  const views = { m: "map", p: "pods", t: "table" };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (event.key === "Escape") {
      if (event.target === search) search.blur();
      else actions.close();
      return;
    }
    if (event.target.matches("input, textarea, select")) return;
    const act = {
      "/": () => search.focus(),
      "?": open,
      u: actions.toggleProblems,
      ...Object.fromEntries(Object.entries(views).map(([key, view]) => [key, () => actions.view(view)])),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
    if (event.key in views || event.key === "u") actions.reveal();
  });
  return open;
}

function helpDialog() {
  const dialog = element("dialog", "help");
  const rows = HELP.flatMap(([keys, text]) => [
    element("dt", "", ...keys.split(" ").flatMap((key, i) => (keys.includes("keys") ? (i ? [] : [element("kbd", "", keys)]) : [element("kbd", "", key), " "]))),
    element("dd", "", text),
  ]);
  const shapes = element(
    "p",
    "hint",
    "A link to this page keeps what you see: search, filter, view, order and selection are in its address.",
  );
  const close = button("close", () => dialog.close(), "×");
  close.setAttribute("aria-label", "Close");
  const title = element("h2", "", "Keys");
  title.id = "help-title";
  dialog.setAttribute("aria-labelledby", title.id);
  dialog.append(close, title, element("dl", "", ...rows), shapes);
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  return dialog;
}
