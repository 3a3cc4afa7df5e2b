// What is shown, as the query of the page's address, so that a link to it shows the same.

const DELAY = 300;  // browsers limit the rate of replaceState
const KEYS = ["q", "show", "view", "sort", "closed", "resource", "device", "pod"];
const LISTS = new Set(["show", "closed"]);

let timer = 0;

// Returns the values in the address; lists are arrays, and what is absent is empty.
export function readAddress() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(
    KEYS.map((key) => {
      const value = query.get(key) ?? "";
      return [key, LISTS.has(key) ? value.split(",").filter(Boolean) : value];
    }),
  );
}

// Puts values into the address, without an entry in the history.
export function writeAddress(values) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const query = new URLSearchParams();
    for (const key of KEYS) {
      const text = LISTS.has(key) ? [...values[key]].join(",") : values[key];
      if (text) query.set(key, text);
    }
    const text = query.toString().replaceAll("%2C", ",").replaceAll("%2F", "/");
    history.replaceState(null, "", `${location.pathname}${text && `?${text}`}`);
  }, DELAY);
}
