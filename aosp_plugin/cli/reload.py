"""``aosp-plugin reload``: lets the plugin beside it read its configuration again, and returns the outcome."""

import contextlib
import os
import signal
import time

from aosp_plugin.cli.status import fetch
from aosp_plugin.framework.errors import ServiceError
from aosp_plugin.report.document import ReloadReport
from aosp_plugin.report.process import identify, serves

WITHIN = 60.0
"""Seconds to wait for the outcome: each part of the configuration that hangs is given up after 10 s."""
PAUSE = 0.1
"""Seconds between two questions."""


def reload(url: str) -> ReloadReport:
    """Reload the configuration of the plugin at ``url``, and return the outcome.

    Raises ServiceError if its process cannot be found from here, or has no outcome, ConfigError for an invalid URL, and
    OSError if the user may not signal the process.
    """
    process = fetch(url).process
    # Behind a forwarded port is a process of another host, or another container, whose ID means another process here.
    # While no plugin runs, any user can listen at its address and name a process of root.
    if process is None or identify(process.pid) != process or not serves(process.pid):
        raise ServiceError(f"the process of the plugin at {url} is not visible here; run aosp-plugin reload in its pod")
    requested = time.time()
    os.kill(process.pid, signal.SIGHUP)
    end = time.monotonic() + WITHIN
    while time.monotonic() < end:
        time.sleep(PAUSE)
        if identify(process.pid) != process:
            raise ServiceError("the plugin ended during the reload; its log says why")
        with contextlib.suppress(ServiceError):  # it cannot be reached while it executes its program again
            outcome = fetch(url).last_reload
            if outcome is not None and outcome.began >= requested:
                return outcome
    raise ServiceError(f"the plugin at {url} reports no outcome of the reload after {WITHIN:.0f} s; see its log")
