"""``aosp-plugin demo --stay``, used as a person uses it: in a terminal, with keys."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator

import psutil

DEMO = [sys.executable, "-m", "aosp_plugin", "demo", "--stay", "--phones", "10"]
LIST_OF_KEYS = "q  end, also Ctrl-C"
PATIENCE = 30.0
"""Seconds after which a test gives up waiting."""


class Session:
    """A demo whose output is read from a descriptor."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.text = ""
        """What the demo has printed, without styles."""
        self._descriptor = descriptor
        self._seen = 0

    def until(self, pattern: str) -> re.Match[str]:
        """Read until a line after those of previous calls matches, and return the match."""
        deadline = time.monotonic() + PATIENCE
        while (match := re.compile(pattern).search(self.text, self._seen)) is None:
            assert self._read(), f"the demo has ended without {pattern!r}:\n{self.text[self._seen :]}"
            assert time.monotonic() < deadline, f"{pattern!r} not printed:\n{self.text[self._seen :]}"
        self._seen = match.end()
        return match

    def press(self, key: str, *patterns: str) -> None:
        """Press a key, and read until each of these patterns was printed, in this order."""
        os.write(self._descriptor, key.encode())
        for pattern in patterns:
            self.until(pattern)

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read():
            assert time.monotonic() < deadline, f"the demo does not end:\n{self.text[self._seen :]}"
        return self.process.wait(PATIENCE)

    def settings(self) -> object:
        """Return the settings of the terminal."""
        return termios.tcgetattr(self._descriptor)

    def _read(self) -> bool:
        if not select.select([self._descriptor], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        self.text += re.sub(r"\x1b\[\d*m|\r", "", data.decode())
        return bool(data)


@contextlib.contextmanager
def running(kubelet_dir: str, *, in_terminal: bool = True) -> Iterator[Session]:
    """Run a demo, by default in a terminal of its own, whose foreground process group it is."""
    ours, theirs = pty.openpty() if in_terminal else os.pipe()
    command = ["setsid", "--ctty", *DEMO] if in_terminal else DEMO
    stdin, environment = theirs if in_terminal else subprocess.DEVNULL, os.environ | {"TMPDIR": kubelet_dir}
    with subprocess.Popen(command, stdin=stdin, stdout=theirs, stderr=theirs, env=environment) as process:  # noqa: S603 - our own command
        os.close(theirs)
        try:
            yield Session(process, ours)
        finally:
            process.terminate()
            os.close(ours)


def processes_of(directory: str) -> list[str]:
    """Return the command lines of all processes that belong to a demo in ``directory``."""
    commands = []
    for process in psutil.process_iter(["cmdline", "open_files"]):
        names = [*(process.info["cmdline"] or ()), *(file.path for file in process.info["open_files"] or ())]
        if any(directory in name for name in names):
            commands.append(" ".join(process.info["cmdline"] or ()))
    return commands


def test_keys_remove_devices_kill_the_plugin_and_restart_the_kubelet(kubelet_dir: str) -> None:
    with running(kubelet_dir) as demo:
        demo.until(re.escape(LIST_OF_KEYS))
        demo.press("?", re.escape(LIST_OF_KEYS))
        demo.press("v", r"phone\d: all binder devices removed", "capacity 10, allocatable 9")
        demo.press("i", r"phone\d: hwbinder removed", "unhealthy=incomplete:1,missing:1")
        demo.press("v", r"phone\d: all binder devices created again", r"allocatable 9\b")
        demo.press("i", r"phone\d: hwbinder created again", "capacity 10, allocatable 10")
        demo.press("k", "the kubelet restarts", "allocatable 10")
        demo.press("p", "the plugin is killed", "allocatable 0", "removed stale socket", "allocatable 10")
        demo.press("q", r"Ended after \d+ s, \d+ pods and 6 faults\.")
        assert demo.end() == 0
    assert os.listdir(kubelet_dir) == []


def test_end_restores_the_terminal_and_ends_all_processes(kubelet_dir: str) -> None:
    with running(kubelet_dir) as demo:
        before = demo.settings()
        demo.until(re.escape(LIST_OF_KEYS))
        during = demo.settings()
        processes = processes_of(kubelet_dir)
        demo.press("\x03", "Ended after")  # Ctrl-C
        assert demo.process.wait(PATIENCE) == 0
        assert demo.settings() == before != during
    assert len(processes) == 1
    assert (processes_of(kubelet_dir), os.listdir(kubelet_dir)) == ([], [])


def test_without_terminal_pods_come_and_go_until_sigterm(kubelet_dir: str) -> None:
    with running(kubelet_dir, in_terminal=False) as demo:
        url = demo.until(r"page +(http://\S+)")[1]
        with urllib.request.urlopen(f"{url}status", timeout=PATIENCE) as response:  # noqa: S310 - our own address
            (resource,) = json.load(response)["resources"]
        demo.until(r"pod +[+-] (games|streaming|tests)/phone-")
        demo.process.send_signal(signal.SIGTERM)
        assert demo.end() == 0
    assert (resource["name"], len(resource["devices"])) == ("aosp.io/phone", 10)
    assert os.listdir(kubelet_dir) == []
