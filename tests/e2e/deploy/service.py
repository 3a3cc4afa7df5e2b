"""A systemd as process 1 of a sandbox, which runs the unit. ``items_service`` has the items.

``python -m tests.e2e.deploy.service FILE PROGRAM`` is the sandbox's first process: it sets up the sandbox, starts
the items in a child, which writes their results to FILE, and becomes systemd. The unit runs the single file that ``make
release`` builds, with this Python. A drop-in allows reading homes and /tmp, and shortens the watchdog.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hack.release import single_file, source
from tests.e2e.common import cache
from tests.e2e.common.packages import MissingError
from tests.e2e.common.report import say
from tests.e2e.deploy.items_unit import PROGRAM, SYSTEMD, UNIT
from tests.e2e.deploy.parts import DEPLOY, PROJECT, run
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.common.report import Report

DEVICES: Final = Path("/run/nodes")
"""The directory of the stand-ins; /dev is the machine's."""
KUBELET: Final = Path("/var/lib/kubelet")
WATCHDOG: Final = 10
"""Seconds."""
LIMIT: Final = 600.0
"""The time limit for all items, in seconds."""

_MANAGER: Final = "/lib/systemd/systemd"
_CONFIG: Final = Path("/run/config.yaml")
_UNITS: Final = Path("/run/units")
_TARGETS: Final = ("sysinit", "basic", "shutdown", "network", "local-fs", "multi-user")
_UNSHARE: Final = ("--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc", "--cgroup", "--mount-proc")


def check(report: Report) -> None:
    """Run the items in the sandbox, and report the results. Raises MissingError if a sandbox is impossible."""
    if os.geteuid() != 0 or not os.path.exists(_MANAGER) or not shutil.which("unshare"):
        raise MissingError("a systemd in a sandbox requires root, systemd and unshare")
    # Not at the same time as tests/e2e/kubelet, which mounts file systems at the same paths.
    with cache.exclusive("sandbox"), tempfile.TemporaryDirectory() as directory, _clean_up():
        results, log = Path(directory, "results"), Path(directory, "log")
        arguments = (sys.executable, "-m", __name__, str(results), str(_program(Path(directory))))
        command = ("unshare", *_UNSHARE, "--propagation", "private", *arguments)
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LIMIT)
            finally:
                process.kill()
                process.wait()
        if not results.exists():
            raise MissingError(f"no systemd as process 1 of a sandbox: {log.read_text(errors='replace')[-300:]!r}")
        messages = [json.loads(line) for line in results.read_text().splitlines()]
    for title, seconds, detail in messages:
        if detail:
            report.not_ok(title, detail)
        elif title:
            report.ok(title, seconds)
    if not messages or messages[-1][0]:
        report.not_ok("The items in the sandbox run to their end", f"no result after {len(messages)} items")


def _program(directory: Path) -> Path:
    """Build the single file for this version of Python."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={directory}", str(PROJECT))
    return single_file.build(source.read(PROJECT), directory, [f"{sys.version_info.major}.{sys.version_info.minor}"])


@contextlib.contextmanager
def _clean_up() -> Iterator[None]:
    """Remove the new cgroups and the kubelet's directory afterwards."""
    cgroup = re.search(r"^0::(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    mounted = re.search(r"^\S+ (\S+) cgroup2 ", Path("/proc/mounts").read_text(), re.MULTILINE)
    if cgroup is None or mounted is None:
        raise MissingError("no cgroups of version 2 are mounted")
    groups = [Path(f"{mounted[1]}{cgroup[1]}", name) for name in ("init.scope", "system.slice")]
    missing = [path for path in (*groups, KUBELET) if not path.exists()]
    KUBELET.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for path in missing:
            try:
                until(partial(_removed, path), f"{path} is removed", seconds=10)
            except AssertionError as error:
                say(f"# left behind: {error}")


def _removed(path: Path) -> bool:
    """Remove empty directories, and return whether all are gone; a cgroup is busy until its last process is reaped."""
    for directory, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    return not path.exists()


def main() -> None:
    """Set up the sandbox, start the items, and become systemd."""
    for path in ("/run", "/var/cache", str(KUBELET)):
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", path)
    subprocess.run(("umount", "--recursive", "/sys/fs/cgroup"), check=False, capture_output=True)
    run("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
    # As on a host, later mounts appear in the service's mount namespace.
    run("mount", "--make-rshared", "/")
    run("ip", "link", "set", "lo", "up")
    _set_up(f"{sys.executable} {sys.argv[2]}")
    subprocess.Popen((sys.executable, "-m", "tests.e2e.deploy.items_service", sys.argv[1]), cwd=PROJECT)
    os.environ.update(container="sandbox", SYSTEMD_UNIT_PATH=str(_UNITS), SYSTEMD_PROC_CMDLINE="")
    os.execv(_MANAGER, (_MANAGER, "--system", "--unit=multi-user.target", "--log-target=console"))  # noqa: S606


def _set_up(program: str) -> None:
    """Create stand-ins, configuration, units with this program, and the kubelet's directory."""
    (KUBELET / "device-plugins").mkdir(mode=0o750)
    for path in (DEVICES, _UNITS / f"{UNIT}.d"):
        path.mkdir(parents=True)
    for number in range(3):
        os.mknod(DEVICES / f"aosp_binder{number}", 0o20666, os.makedev(1, 3))
    configure()
    for name in _TARGETS:
        wants = f"Wants={UNIT}\n" if name == "multi-user" else ""
        (_UNITS / f"{name}.target").write_text(f"[Unit]\nDefaultDependencies=no\n{wants}")
    text = (SYSTEMD / UNIT).read_text()
    for name, replacement in ((PROGRAM, program), ("/etc/aosp-plugin/config.yaml", str(_CONFIG))):
        assert name in text, f"{name} is not in the unit"
        text = text.replace(name, replacement)
    (_UNITS / UNIT).write_text(text)
    drop_in("sandbox.conf", f"[Service]\nProtectHome=read-only\nPrivateTmp=no\nWatchdogSec={WATCHDOG}\n")


def configure(keys: str = "") -> None:
    """Write the configuration of deploy/base for the stand-ins, with additional keys."""
    text = (DEPLOY / "base" / "config.yaml").read_text().replace("\nverify: binder\n", "\nverify: char\n")
    _CONFIG.write_text(f"{text}\ndevice_dir: {DEVICES}\n{keys}")


def drop_in(name: str, text: str) -> None:
    """Write a drop-in, which systemd reads with the unit."""
    (_UNITS / f"{UNIT}.d" / name).write_text(text)


if __name__ == "__main__":
    main()
