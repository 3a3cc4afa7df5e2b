// Numbers, times and ages as text.

import { element } from "./dom.js";

const NATURAL = new Intl.Collator("en", { numeric: true });

export const natural = (a, b) => NATURAL.compare(a, b);

export const number = (value) => value.toLocaleString("en-US");

export const clock = (date) => date.toLocaleTimeString("en-GB");

export const dateTime = (seconds) => new Date(seconds * 1000).toLocaleString("en-GB");

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

// Returns a duration in seconds as text, in its two largest units.
export function duration(seconds) {
  const minutes = Math.max(0, Math.floor(seconds / 60));
  const [days, hours] = [Math.floor(minutes / 1440), Math.floor(minutes / 60) % 24];
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min`;
}

// Returns an element with the time since a moment in seconds since the epoch, which updateAges keeps current.
export function age(since) {
  const time = element("time", "age");
  time.dataset.since = since;
  time.title = `since ${dateTime(since)}`;
  updateAge(time);
  return time;
}

export function updateAges() {
  document.querySelectorAll("[data-since]").forEach(updateAge);
}

function updateAge(time) {
  const seconds = Math.max(0, Date.now() / 1000 - Number(time.dataset.since));
  time.textContent = seconds < 120 ? `${Math.floor(seconds)} s` : duration(seconds);
}

// Joins consecutive names that differ only in the number at their end: a0, a1, a2, b becomes a0..2, b.
export function ranges(names) {
  const joined = [];
  let [first, following] = ["", null];
  for (const name of names) {
    const [, stem, digits] = /^(.*\D)(0|[1-9]\d*)$/.exec(name) ?? [];
    if (digits !== undefined && name === following) joined[joined.length - 1] = `${first}..${digits}`;
    else {
      joined.push(name);
      first = name;
    }
    following = digits === undefined ? null : `${stem}${Number(digits) + 1}`;
  }
  return joined;
}
