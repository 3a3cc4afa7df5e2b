// Asking /status again and again, while somebody looks, and never two questions at once. What has not changed costs a
// line, by its ETag, and the plugin a millisecond or two.

const EVERY = 250;
const PATIENCE = 5000;

// `told` gets each report that is new; `state` gets "live", "paused" or "lost", and with that why and since when.
export function follow(told, state) {
  let tag = "";
  let lostSince = null;
  let timer = 0;
  let asking = false;

  // Returns the report, or null where it is still the last one.
  async function ask() {
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await fetch("status", { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (answer.status === 304) return null;
    if (answer.status !== 200) throw new Error((await answer.text()).trim() || `HTTP ${answer.status}`);
    const report = await answer.json();
    tag = answer.headers.get("ETag") ?? "";
    return report;
  }

  async function turn() {
    if (asking || document.hidden) return;
    asking = true;
    let report = null;
    try {
      report = await ask();
      lostSince = null;
    } catch (error) {
      lostSince ??= new Date();
      const silent = error instanceof TypeError || error.name === "TimeoutError";
      state("lost", silent ? "the plugin does not answer" : error.message, lostSince);
    }
    asking = false;
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(turn, EVERY);
    if (!document.hidden && !lostSince) state("live");
    if (report) told(report);
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) state("paused");
    else turn();
  });
  turn();
}
