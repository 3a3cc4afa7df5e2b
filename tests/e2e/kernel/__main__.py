"""``python -m tests.e2e.kernel``: the plugin on real binder kernels, with real container runtimes.

Boots a kernel with binderfs, the same with a real kubelet, and Debian's own kernel; has ``guest`` prove each item in
there, and prints a line for each:
``ok 12 - …``, ``not ok 13 - … : why``, ``ok 14 - … # skip: why``. The exit code is 1 where an item failed.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.common import packages
from tests.e2e.common.report import Report, say
from tests.e2e.deploy import parts as deploy_parts
from tests.e2e.kernel import initrd, items_stock, machine, parts
from tests.e2e.kernel.suite import TITLES
from tests.e2e.kubelet import parts as kubelet_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SECONDS: Final = 1800
"""How long one guest may take, in software emulation on a busy machine."""

_MEMORY: Final = 2048
"""MiB."""

_MEMORY_FOR_PODS: Final = 6144
"""What containerd unpacks is in memory too."""

_ENVIRONMENT: Final = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "LC_ALL": "C.UTF-8",
    "GRPC_VERBOSITY": "ERROR",
    "E2E_PATIENCE": "120",
}

_SHOWN: Final = 40
"""Lines of the console that are shown where a guest died."""


class Boot:
    """One boot, and the items that are proved in it."""

    def __init__(self, name: str, report: Report) -> None:
        self._name = name
        self._report = report
        self._left = list(TITLES[name])
        self._ended = False

    def skip(self, why: str) -> None:
        """Say of each item that it could not be run here."""
        for title in self._left:
            self._report.skip(title, why)

    def fail(self, why: str) -> None:
        """Say of each item that it does not hold."""
        for title in self._left:
            self._report.not_ok(title, why)

    def run(self, kernel: Path, *more: Path, modules: Sequence[tuple[Path, str]] = (), memory: int = _MEMORY) -> None:
        """Boot, hand ``more`` parts to the guest, and report each item as it tells of it."""
        started = time.monotonic()
        command = [sys.executable, "-m", "tests.e2e.kernel.guest", self._name, *map(str, (parts.probe(), *more))]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **_ENVIRONMENT}
        with tempfile.TemporaryDirectory() as made:
            directory = Path(made)
            start = initrd.start_script(command, str(parts.PROJECT), environment)
            initrd.build(directory / "initrd", start, modules)
            guest = machine.Guest(kernel, directory / "initrd", directory / "console", memory)
            problem = machine.boot(guest, self._hear, _SECONDS)
            if problem or not self._ended:
                self._died(problem or "the guest ended early", guest.console)
        say(f"# {self._name}: {time.monotonic() - started:.0f} s")

    def _hear(self, line: str) -> None:
        try:
            word = json.loads(line)
        except ValueError:
            say(f"# {line}")
            return
        if "up" in word:
            say(f"# the guest is up: {self._name}")
        elif "end" in word:
            self._ended = True
        elif word["passed"]:
            self._report.ok(word["title"], word["seconds"])
        else:
            self._report.not_ok(word["title"], word["detail"])
        if "title" in word:
            self._left.remove(word["title"])

    def _died(self, problem: str, console: Path) -> None:
        text = console.read_text(errors="replace") if console.exists() else ""
        for line in text.splitlines()[-_SHOWN:]:
            say(f"# console: {line.rstrip()}")
        self.fail(problem)
        if not self._left:
            self._report.not_ok(f"{self._name}: the guest runs to its end", problem)


def main() -> int:
    """Prove what can be proved on this machine, and return the exit code."""
    # As by Ctrl-C: the guest ends with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report = Report()
    ways: dict[str, Callable[[Boot], None]] = {
        "binderfs": _binderfs,
        "phones": _binderfs,
        "pods": _pods,
        "stock": _stock,
    }
    wanted = sys.argv[1:] or list(ways)
    for name in wanted:
        boot = Boot(name, report)
        try:
            parts.install()
            ways[name](boot)
        except packages.MissingError as error:
            boot.skip(str(error))
        except packages.BrokenError as error:
            boot.fail(str(error))
    return report.end()


def _binderfs(boot: Boot) -> None:
    boot.run(parts.kernel())


def _pods(boot: Boot) -> None:
    packages.install(kubelet_parts.PACKAGES)
    image = kubelet_parts.plugin_image()
    boot.run(parts.kernel(), kubelet_parts.kubelet(), image, _kustomize(), memory=_MEMORY_FOR_PODS)


def _kustomize() -> Path:
    try:
        return Path(deploy_parts.kustomize())
    except AssertionError as error:
        raise packages.BrokenError(str(error)) from error


def _stock(boot: Boot) -> None:
    stock = parts.stock()
    boot.run(stock.kernel, modules=stock.modules(items_stock.NAMES))


if __name__ == "__main__":
    sys.exit(main())
