// A list of rows with the same height, of which only the visible ones are elements: ten thousand scroll like ten.

import { element } from "./dom.js";

const MARGIN = 8;  // rows above and below the visible ones

export class Rows {
  // `scroller` scrolls `body`. The height of a row is the custom property --row of the scroller. `create` returns the
  // element of an item, with a data-key by which it gets the focus back.
  constructor(scroller, body, tag, create) {
    Object.assign(this, { scroller, body, create });
    this.items = [];
    this.before = element(tag, "spacer");
    this.after = element(tag, "spacer");
    for (const spacer of [this.before, this.after]) spacer.setAttribute("aria-hidden", "true");
    scroller.addEventListener("scroll", () => this.render(), { passive: true });
    new ResizeObserver(() => this.render(true)).observe(scroller);
  }

  set(items) {
    this.items = items;
    this.render(true);
  }

  // Creates the visible rows; without `force`, only if others are visible than before.
  render(force = false) {
    const height = parseFloat(getComputedStyle(this.scroller).getPropertyValue("--row"));
    const visible = Math.ceil(this.scroller.clientHeight / height);
    const top = Math.floor(this.scroller.scrollTop / height);
    const start = Math.max(0, Math.min(top, this.items.length - visible) - MARGIN);
    const end = Math.min(this.items.length, top + visible + MARGIN);
    if (!force && start === this.start && end === this.end) return;
    Object.assign(this, { start, end });
    const focused = this.body.contains(document.activeElement) ? document.activeElement.closest("[data-key]") : null;
    this.before.style.height = `${start * height}px`;
    this.after.style.height = `${(this.items.length - end) * height}px`;
    const rows = this.items.slice(start, end).map((item, i) => this.create(item, start + i));
    this.body.replaceChildren(this.before, ...rows, this.after);
    if (focused) {
      const same = rows.find((row) => row.dataset.key === focused.dataset.key);
      same?.querySelector("button")?.focus({ preventScroll: true });
    }
  }

  // Scrolls until a row is visible.
  reveal(i) {
    const height = parseFloat(getComputedStyle(this.scroller).getPropertyValue("--row"));
    const [top, bottom] = [i * height, (i + 2) * height];  // the header of a table covers about a row
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (bottom > this.scroller.scrollTop + this.scroller.clientHeight) {
      this.scroller.scrollTop = bottom - this.scroller.clientHeight;
    }
  }
}
