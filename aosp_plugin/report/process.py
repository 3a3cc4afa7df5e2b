"""Identifies a process of this host, so that its signals do not reach a later process with its ID."""

import re

from aosp_plugin.report.document import ProcessReport

_SERVE = re.compile(rb"aosp[-_]plugin[^\0/]*\0serve\0")
"""Matches the command line of a plugin: the installed script, the zipapp or the package, and its command."""
_START = 19
"""Position of the start time in /proc/PID/stat, after the name of the program."""


def identify(pid: int) -> ProcessReport | None:
    """Return the identity of the process with this ID; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessReport(pid, int(fields[_START]))


def serves(pid: int) -> bool:
    """Return whether the process with this ID is a plugin, by its command line. Raises OSError if there is none."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return _SERVE.search(file.read()) is not None
