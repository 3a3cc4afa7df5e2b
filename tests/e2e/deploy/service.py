"""A systemd as process 1 of a sandbox, which runs the unit, and commands in it.

``python -m tests.e2e.deploy.service PROGRAM`` is the sandbox's first process: it sets up the sandbox and becomes
systemd. The unit runs the single file that ``make release`` builds, with this Python. A drop-in allows reading homes
and /tmp, and shortens the watchdog.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from hack.release import single_file, source
from tests.e2e.common.packages import MissingError
from tests.e2e.common.processes import children
from tests.e2e.common.report import say
from tests.e2e.common.sandbox import UNSHARE, mount_memory, remove_directories
from tests.e2e.common.waiting import until
from tests.e2e.deploy.parts import DEPLOY, PROGRAM, PROJECT, SYSTEMD, UNIT, run

DEVICES: Final = Path("/run/nodes")
"""The directory of the stand-ins; /dev is the machine's."""
KUBELET: Final = Path("/var/lib/kubelet")
PLUGINS: Final = KUBELET / "device-plugins"
WATCHDOG: Final = 10
"""Seconds."""
RESOURCE: Final = "aosp.io/binder"

_MANAGER: Final = "/lib/systemd/systemd"
_CONFIG: Final = Path("/run/config.yaml")
_UNITS: Final = Path("/run/units")
_TARGETS: Final = ("sysinit", "basic", "shutdown", "network", "local-fs", "multi-user")
_MORE: Final = ("--uts", "--ipc", "--cgroup", "--mount-proc")
"""Further namespaces."""


class Sandbox:
    """The sandbox with this first process, as this machine's PID."""

    def __init__(self, init: int) -> None:
        self._root = Path(f"/proc/{init}/root")
        self.enter: Final = ("nsenter", f"--target={init}", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup")
        """Words before a command, which then runs in the sandbox."""

    def run(self, *command: str) -> str:
        """Run a command in the sandbox and return its output. Raises AssertionError with its messages if it fails."""
        return run(*self.enter, *command)

    def path(self, path: str | Path) -> Path:
        """Return the path of a file of the sandbox."""
        return self._root / str(path).lstrip("/")

    def show(self, *names: str) -> dict[str, str]:
        """Return properties of the service."""
        lines = self.run("systemctl", "show", UNIT, f"--property={','.join(names)}").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def wait(self, **expected: str) -> None:
        """Wait until the service has these properties."""

        def reached() -> bool:
            properties = self.show(*expected)
            assert properties == expected, f"{properties}"
            return True

        until(reached, f"{expected}")

    def pid(self) -> str:
        """Return the PID of the service's main process, in the sandbox."""
        return self.show("MainPID")["MainPID"]

    def status(self) -> dict[str, str]:
        """Return /proc/PID/status of the main process."""
        lines = self.run("cat", f"/proc/{self.pid()}/status").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def configure(self, keys: str = "") -> None:
        """Write the configuration with additional keys."""
        _configure(self.path(_CONFIG), keys)

    def drop_in(self, name: str, text: str) -> None:
        """Write a drop-in, which systemd reads with the unit."""
        self.path(_UNITS / f"{UNIT}.d" / name).write_text(text)

    @contextlib.contextmanager
    def kubelet(self) -> Iterator[None]:
        """Run a stand-in kubelet, from when it can allocate the three devices."""
        command = (*self.enter, sys.executable, "-m", "kubelet_standin", str(PLUGINS))
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=PROJECT, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"wait {RESOURCE} 3\n")
            try:
                events = []
                while '"event": "allocatable"' not in (line := process.stdout.readline()):
                    events.append(line)
                    assert line, events
                    assert '"event": "error"' not in line, events
                yield
            finally:
                process.stdin.write("quit\n")


@contextlib.contextmanager
def sandbox(directory: Path) -> Iterator[Sandbox]:
    """Run systemd in a sandbox, until the unit is there. Raises MissingError if a sandbox is impossible."""
    if os.geteuid() != 0 or not os.path.exists(_MANAGER) or not shutil.which("unshare"):
        raise MissingError("a systemd in a sandbox requires root, systemd and unshare")
    log = directory / "log"
    command = (*UNSHARE, *_MORE, sys.executable, "-m", __name__, _program(directory))
    with _clean_up(), log.open("wb") as out:
        process = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            try:
                found = Sandbox(until(lambda: children(process.pid), "a process in the sandbox")[0])
                until(lambda: UNIT in found.run("systemctl", "list-units", "--all", UNIT), "systemd answers")
            except AssertionError as error:
                messages = log.read_text(errors="replace")[-300:]
                raise MissingError(f"no systemd as process 1 of a sandbox: {error}, {messages!r}") from error
            yield found
        finally:
            process.kill()
            process.wait()


def _program(directory: Path) -> str:
    """Build the single file for this version of Python, and return its path."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={directory}", str(PROJECT))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return str(single_file.build(source.read(PROJECT), directory, [version]))


@contextlib.contextmanager
def _clean_up() -> Iterator[None]:
    """Remove the new cgroups afterwards."""
    cgroup = re.search(r"^0::(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    mounted = re.search(r"^\S+ (\S+) cgroup2 ", Path("/proc/mounts").read_text(), re.MULTILINE)
    if cgroup is None or mounted is None:
        raise MissingError("no cgroups of version 2 are mounted")
    groups = [Path(f"{mounted[1]}{cgroup[1]}", name) for name in ("init.scope", "system.slice")]
    missing = [path for path in groups if not path.exists()]
    try:
        yield
    finally:
        for path in missing:
            try:
                until(partial(_removed, path), f"{path} is removed", seconds=10)
            except AssertionError as error:
                say(f"# left behind: {error}")


def _removed(path: Path) -> bool:
    """Remove a cgroup, and return whether it is gone."""
    remove_directories(path)
    return not path.exists()


def main() -> None:
    """Set up the sandbox, and become systemd."""
    mount_memory("/run", "/var/cache", "/var/lib")
    subprocess.run(("umount", "--recursive", "/sys/fs/cgroup"), check=False, capture_output=True)
    run("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
    # As on a host, later mounts appear in the service's mount namespace.
    run("mount", "--make-rshared", "/")
    run("ip", "link", "set", "lo", "up")
    _set_up(f"{sys.executable} {sys.argv[1]}")
    os.environ.update(container="sandbox", SYSTEMD_UNIT_PATH=str(_UNITS), SYSTEMD_PROC_CMDLINE="")
    os.execv(_MANAGER, (_MANAGER, "--system", "--unit=multi-user.target", "--log-target=console"))  # noqa: S606


def _set_up(program: str) -> None:
    """Create stand-ins, configuration, units with this program, and the kubelet's directory."""
    PLUGINS.mkdir(mode=0o750, parents=True)
    for path in (DEVICES, _UNITS / f"{UNIT}.d"):
        path.mkdir(parents=True)
    for number in range(3):
        os.mknod(DEVICES / f"aosp_binder{number}", 0o20666, os.makedev(1, 3))
    _configure(_CONFIG)
    for name in _TARGETS:
        wants = f"Wants={UNIT}\n" if name == "multi-user" else ""
        (_UNITS / f"{name}.target").write_text(f"[Unit]\nDefaultDependencies=no\n{wants}")
    text = (SYSTEMD / UNIT).read_text()
    for name, replacement in ((PROGRAM, program), ("/etc/aosp-plugin/config.yaml", str(_CONFIG))):
        assert name in text, f"{name} is not in the unit"
        text = text.replace(name, replacement)
    (_UNITS / UNIT).write_text(text)
    own = f"[Service]\nProtectHome=read-only\nPrivateTmp=no\nWatchdogSec={WATCHDOG}\n"
    (_UNITS / f"{UNIT}.d" / "sandbox.conf").write_text(own)


def _configure(path: Path, keys: str = "") -> None:
    """Write the configuration of deploy/base for the stand-ins, with additional keys."""
    text = (DEPLOY / "base" / "config.yaml").read_text().replace("\nverify: binder\n", "\nverify: char\n")
    path.write_text(f"{text}\ndevice_dir: {DEVICES}\n{keys}")


if __name__ == "__main__":
    main()
