"""``python -m tests.e2e.kernel``: the plugin on real binder kernels, with real container runtimes.

Boots guests in QEMU. In each guest the module ``guest`` runs the items of one boot, and this program prints a line for
each: ``ok 12 - …``, ``not ok 13 - … : reason``, ``ok 14 - … # skip: reason``. The exit code is 1 if an item failed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.e2e.common import packages
from tests.e2e.common.report import Report, say
from tests.e2e.deploy import parts as deploy_parts
from tests.e2e.kernel import (
    aosp_parts,
    architectures,
    confinement,
    foreign,
    initrd,
    items_aosp,
    items_stock,
    kernels,
    machine,
    parts,
    phones,
    systemd,
)
from tests.e2e.kernel.suite import TITLES
from tests.e2e.kubelet import parts as kubelet_parts
from tests.e2e.kubelet import runtime_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.e2e.kernel.architectures import Architecture
    from tests.e2e.kernel.kernels import Bootable

_SECONDS: Final = 2 * 3600
"""The time limit of one guest, which allows for software emulation on a busy machine."""

_MEMORY: Final = 2048
"""MiB."""

_MEMORY_FOR_PODS: Final = 6144
"""MiB; the images that containerd unpacks are in memory too."""

_ENVIRONMENT: Final = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "LC_ALL": "C.UTF-8",
    "GRPC_VERBOSITY": "ERROR",
    "E2E_PATIENCE": "120",
}

_CONSOLE_LINES: Final = 40
"""Lines of the console that are printed if the guest dies."""

_CORE: Final = ("core",)

_ALL: Final = tuple(boot for boot in TITLES if boot not in _CORE)

_DEVICES: Final = {
    **dict.fromkeys(("binderfs-phones", "claims"), phones.NAMES),
    "other-names": ("anbox", "binder"),
}
"""The value of the module's parameter, by boot: the kernel creates these devices in each new binderfs."""


_SECURITY: Final = {
    **dict.fromkeys(("core", "android"), "security=selinux"),
    "android-apparmor": "apparmor=1 security=apparmor",
}
"""For the kernel's command line: the Linux security module. Of its own, Debian's has AppArmor, or else SELinux.

Without a policy SELinux allows everything, and gives all processes one context.
"""

_GPUS: Final = ("-device", "bochs-display", *("-device", "virtio-gpu-pci") * 2)
"""A card without a render node, as a BMC has, and two GPUs."""

_NO_SELINUX: Final = "requires a kernel that boots with SELinux"


class Variant(NamedTuple):
    """What the guests are, if not what they are by default."""

    kernel: str
    cgroup: str
    confined: bool
    architecture: Architecture


class Boot:
    """One boot of a guest and the items that run in it."""

    def __init__(self, name: str, variant: Variant, report: Report) -> None:
        self.name = name
        self.variant = variant
        self._report = report
        self._remaining = list(TITLES[name])
        self._ended = False

    def skip(self, reason: str, titles: Iterable[str] | None = None) -> None:
        """Report these items as skipped, or all remaining ones."""
        for title in self._remaining.copy() if titles is None else titles:
            self._report.skip(title, reason)
            self._remaining.remove(title)

    def fail(self, reason: str) -> None:
        """Report all remaining items as failed."""
        for title in self._remaining:
            self._report.not_ok(title, reason)

    def run(
        self,
        kernel: Bootable,
        *paths: Path,
        memory: int = _MEMORY,
        init: Sequence[str] = (),
        before: str = "",
        options: Sequence[str] = (),
    ) -> None:
        """Boot a kernel, pass the paths to the guest, and report each item's result.

        ``init`` is the program that becomes process 1, and ``before`` are lines of the script that starts it.
        ``options`` are QEMU's.
        """
        started = time.monotonic()
        architecture = self.variant.architecture
        root, shared = (Path("/"), ()) if architecture.native else (foreign.tree(architecture), foreign.SHARED)
        python = sys.executable if architecture.native else foreign.PYTHON
        arguments = map(str, (parts.probe(architecture), *paths))
        command = [python, "-m", "tests.e2e.kernel.guest", self.name, *arguments]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **_ENVIRONMENT}
        parameters = kernel.parameters
        if self.variant.confined:
            environment[confinement.PROGRAM] = str(parts.confinement())
            parameters += " apparmor=1 security=apparmor"
        else:
            parameters += f" {_SECURITY.get(self.name, '')}"
        before += initrd.CGROUP_V1 if self.variant.cgroup == "v1" else ""
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary)
            script = initrd.start_script(command, str(parts.PROJECT), environment, before, architecture, init)
            initrd.build(directory / "initrd", script, kernel.modules, root)
            files = (kernel.image, directory / "initrd", directory / "console")
            guest = machine.Guest(
                *files, memory, options, parameters=parameters, architecture=architecture, root=root, shared=shared
            )
            problem = machine.boot(guest, self._receive, _SECONDS)
            if problem or not self._ended:
                self._died(problem or "the guest ended early", guest.console)
        say(f"# {self.name}: {time.monotonic() - started:.0f} s")

    def _receive(self, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            say(f"# {line}")
            return
        if "up" in message:
            say(f"# the guest is up: {self.name}")
        elif "end" in message:
            self._ended = True
        elif message["passed"]:
            self._report.ok(message["title"], message["seconds"])
        else:
            self._report.not_ok(message["title"], message["detail"])
        if "title" in message:
            self._remaining.remove(message["title"])

    def _died(self, problem: str, console: Path) -> None:
        text = console.read_text(errors="replace") if console.exists() else ""
        for line in text.splitlines()[-_CONSOLE_LINES:]:
            say(f"# console: {line.rstrip()}")
        self.fail(problem)
        if not self._remaining:
            self._report.not_ok(f"{self.name}: the guest runs to its end", problem)


def main() -> int:
    """Run the selected boots, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.kernel")
    parser.add_argument("--items", choices=("all", "core"), default="all", help="all boots, or those of the core set")
    parser.add_argument("--kernel", choices=kernels.NAMES, default=kernels.DEFAULT, help="the suite of Debian's kernel")
    parser.add_argument("--arch", choices=architectures.ALL, default="amd64", help="arm64 is emulated")
    parser.add_argument("--cgroup", choices=("v1", "v2"), default="v2")
    parser.add_argument("--confined", action="store_true", help="containers with seccomp filter and AppArmor profile")
    parser.add_argument("boots", nargs="*", metavar="BOOT", help=f"run these boots instead: {', '.join(TITLES)}")
    options = parser.parse_args()
    if unknown := set(options.boots) - TITLES.keys():
        parser.error(f"unknown boots: {', '.join(unknown)}")
    architecture = architectures.ALL[options.arch]
    if options.confined and not architecture.native:
        parser.error("--confined requires a program that is built for x86-64 alone")
    # As after Ctrl-C, the guest ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report = Report()
    boots: dict[str, Callable[[Boot], None]] = {
        "core": _core,
        "host-devices": _host_devices,
        "foreign-binderfs": _foreign_binderfs,
        "pods": _pods,
        "android": _android,
        "android-apparmor": _android_apparmor,
        "stock": _stock,
        **dict.fromkeys(("systemd-core", "systemd", "systemd-pods"), _systemd),
    }
    for name in options.boots or (_ALL if options.items == "all" else _CORE):
        boot = Boot(name, Variant(options.kernel, options.cgroup, options.confined, architecture), report)
        try:
            parts.install(architecture)
            boots.get(name, _binderfs)(boot)
        except packages.MissingError as error:
            boot.skip(str(error))
        except packages.BrokenError as error:
            boot.fail(str(error))
    return report.end()


def _binderfs(boot: Boot) -> None:
    boot.run(kernels.bootable(boot.variant.kernel, _DEVICES.get(boot.name, ()), boot.variant.architecture))


def _host_devices(boot: Boot) -> None:
    kernel = kernels.bootable(boot.variant.kernel, phones.NAMES, boot.variant.architecture, parts.GPU_MODULES)
    boot.run(kernel, options=_GPUS)


def _foreign_binderfs(boot: Boot) -> None:
    if not boot.variant.architecture.native:
        raise packages.MissingError("requires a program that is built for x86-64 alone")
    boot.variant = boot.variant._replace(confined=True)
    boot.run(kernels.bootable(boot.variant.kernel, phones.NAMES, more=parts.DENIED_MODULES))


def _pods(boot: Boot) -> None:
    if not boot.variant.architecture.native:
        raise packages.MissingError("requires a kubelet, which is built for x86-64 alone")
    packages.install(kubelet_parts.PACKAGES)
    kernel = kernels.bootable(boot.variant.kernel)
    image = kubelet_parts.plugin_image()
    boot.run(kernel, kubelet_parts.kubelet(), image, _kustomize(), memory=_MEMORY_FOR_PODS)


def _systemd(boot: Boot) -> None:
    variant = boot.variant
    if not variant.architecture.native or variant.cgroup != "v2":
        raise packages.MissingError("requires this machine's systemd, with cgroup v2")
    packages.install(["systemd", "dbus"])
    paths, memory = [], _MEMORY
    if boot.name != "systemd-core":
        paths += [runtime_parts.runc(), runtime_parts.crun()]
    if boot.name == "systemd-pods":
        packages.install(kubelet_parts.PACKAGES)
        paths += [kubelet_parts.kubelet(), kubelet_parts.plugin_image(), _kustomize()]
        memory = _MEMORY_FOR_PODS
    kernel = kernels.bootable(variant.kernel)
    boot.run(kernel, *paths, memory=memory, init=systemd.INIT, before=systemd.BEFORE)


def _core(boot: Boot) -> None:
    kernel, paths = kernels.bootable(boot.variant.kernel, architecture=boot.variant.architecture), []
    try:
        paths.append(_android_part(boot))
    except packages.MissingError as error:
        boot.skip(str(error), [item.title for item in items_aosp.QUICK])
    boot.run(kernel, *paths)


def _android(boot: Boot) -> None:
    kernel = kernels.bootable(boot.variant.kernel, architecture=boot.variant.architecture)
    boot.run(kernel, _android_part(boot))


def _android_apparmor(boot: Boot) -> None:
    architecture = boot.variant.architecture
    boot.run(kernels.bootable(boot.variant.kernel, architecture=architecture), aosp_parts.build(architecture))


def _android_part(boot: Boot) -> Path:
    """Return Android's binder software, unless it cannot work on the boot's kernel. Raises MissingError."""
    if boot.variant.confined:
        raise packages.MissingError(_NO_SELINUX)
    return aosp_parts.build(boot.variant.architecture)


def _kustomize() -> Path:
    try:
        return Path(deploy_parts.kustomize())
    except AssertionError as error:
        raise packages.BrokenError(str(error)) from error


def _stock(boot: Boot) -> None:
    boot.run(kernels.stock(boot.variant.kernel, items_stock.NAMES, boot.variant.architecture))


if __name__ == "__main__":
    sys.exit(main())
