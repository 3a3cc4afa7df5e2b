"""Identifies a process of this host, so that no other one that has its ID gets its signals."""

from aosp_plugin.report.document import ProcessReport

_START = 19
"""Position of the start time in /proc/PID/stat, after the name of the program."""


def identify(pid: int) -> ProcessReport | None:
    """Return what identifies the process with this ID; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessReport(pid, int(fields[_START]))
