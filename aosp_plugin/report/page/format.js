// Numbers, times and ages as text.

import { element } from "./dom.js";

const NATURAL = new Intl.Collator("en", { numeric: true });

export const natural = (a, b) => NATURAL.compare(a, b);

// Compares names of pods: 10 after 2, but the letters and digits of a hash one by one.
export function byPodName(a, b) {
  const [left, right] = [a.split("-"), b.split("-")];
  const i = left.findIndex((part, at) => part !== right[at]);
  if (i < 0) return left.length - right.length;
  const [one, other] = [left[i], right[i] ?? ""];
  if (/^\d+$/.test(one) && /^\d+$/.test(other)) return one - other;
  return one < other ? -1 : 1;
}

export const number = (value) => value.toLocaleString("en-US");

export const clock = (date) => date.toLocaleTimeString("en-GB");

// Returns a time as the other outputs have it: 2026-11-28 11:36:19.
export const dateTime = (seconds) => new Date(seconds * 1000).toLocaleString("sv-SE");

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
