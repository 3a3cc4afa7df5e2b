// Polls /status while the page is visible, with one request at a time. An unchanged report is answered with its ETag
// only, and takes the plugin a millisecond or two.

const INTERVAL = 250;
const TIMEOUT = 5000;

// Calls `onReport` with each new report, and `onState` with "live", "paused" or "lost", and with the reason and the
// start of a lost connection.
export function poll(onReport, onState) {
  let tag = "";
  let lostSince = null;
  let timer = 0;
  let requesting = false;

  // Returns the report, or null if it has not changed.
  async function request() {
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await fetch("status", { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
    if (answer.status === 304) return null;
    if (answer.status !== 200) throw new Error((await answer.text()).trim() || `HTTP ${answer.status}`);
    const report = await answer.json();
    tag = answer.headers.get("ETag") ?? "";
    return report;
  }

  async function update() {
    if (requesting || document.hidden) return;
    requesting = true;
    let report = null;
    try {
      report = await request();
      lostSince = null;
    } catch (error) {
      lostSince ??= new Date();
      const noAnswer = error instanceof TypeError || error.name === "TimeoutError";
      onState("lost", noAnswer ? "the plugin does not answer" : error.message, lostSince);
    }
    requesting = false;
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(update, INTERVAL);
    if (!document.hidden && !lostSince) onState("live");
    if (report) onReport(report);
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) onState("paused");
    else update();
  });
  update();
}
