"""``python -m tests.e2e.kernel``: the plugin on real binder kernels, with real container runtimes.

Boots guests in QEMU. In each guest, pytest runs the tests of one boot, and this program prints what it prints. The exit
code is 1 if one of them failed, or did not run to its end. Options that are not listed are pytest's.
"""

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.common import packages
from tests.e2e.common.packages import BrokenError, MissingError
from tests.e2e.common.report import say
from tests.e2e.deploy import parts as deploy_parts
from tests.e2e.kernel import (
    aosp_parts,
    architectures,
    boots,
    confinement,
    foreign,
    initrd,
    kernels,
    machine,
    parts,
    selinux,
    systemd,
    world,
)
from tests.e2e.kernel.architectures import UserSpace
from tests.e2e.kernel.boots import BOOTS, Boot
from tests.e2e.kubelet import parts as kubelet_parts
from tests.e2e.kubelet import runtime_parts
from tests.e2e.kubelet.runtimes import COMBINATIONS

_SECONDS: Final = 12 * 3600
"""The time limit of one guest: that of a night in software emulation. CI and the matrix have shorter ones."""

_PYTEST: Final = (
    *("-m", "pytest", "--confcutdir=tests/e2e", "--verbose", "-o", "console_output_style=classic"),
    *("--disable-plugin-autoload", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider"),
    # The tests of a boot share a stand-in kubelet, and so its event loop.
    *("-o", "asyncio_default_test_loop_scope=session", "-o", "asyncio_default_fixture_loop_scope=session"),
    *("--timeout=600", "-o", "timeout_func_only=true"),
    *("-W", "default", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
)

_ENVIRONMENT: Final = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "LC_ALL": "C.UTF-8",
    "GRPC_VERBOSITY": "ERROR",
    "COLUMNS": "300",
    "E2E_PATIENCE": "180",
    "E2E_STRICT": os.environ.get("E2E_STRICT", ""),
    "E2E_NIGHT": os.environ.get("E2E_NIGHT", ""),
}

_DIRECTORY: Final = "tests/e2e/kernel"
_ENDED: Final = "# pytest has ended: "
_CONSOLE_LINES: Final = 40
"""Lines of the console that are printed if the guest dies."""


def main() -> int:
    """Run the selected boots, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.kernel", allow_abbrev=False, usage="%(prog)s [options] [BOOT...] [PYTEST ARGUMENTS]"
    )
    parser.add_argument("--kernel", choices=kernels.NAMES, help="the suite of Debian's kernel")
    parser.add_argument("--arch", choices=architectures.ALL, default="amd64", help="arm64 is emulated")
    parser.add_argument("--cgroup", choices=("v1", "v2"), default="v2")
    parser.add_argument("--runtime", choices=COMBINATIONS, help="of the boots with a kubelet")
    parser.add_argument("--confined", action="store_true", help="containers with seccomp filter and AppArmor profile")
    parser.add_argument("-m", dest="marker", default="", help="the marker of pytest: `core` for the core set, one boot")
    parser.epilog = f"boots: {', '.join(BOOTS)}"
    options, rest = parser.parse_known_args()
    names = list(itertools.takewhile(BOOTS.__contains__, rest))
    if options.confined and not architectures.ALL[options.arch].native:
        parser.error("--confined requires a program that is built for x86-64 alone")
    if options.runtime and not architectures.ALL[options.arch].native:
        parser.error("--runtime requires programs that are built for x86-64 alone")
    # As after Ctrl-C, the guest ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    unnamed = [name for name, boot in BOOTS.items() if not boot.requested]
    selected = [name for name in unnamed if (name == "core") == (options.marker == "core")]
    codes = {_run(name, options, rest[len(names) :]) for name in names or selected}
    # A boot without a selected test has passed, if another one has such a test.
    return max(codes - {pytest.ExitCode.NO_TESTS_COLLECTED}, default=pytest.ExitCode.NO_TESTS_COLLECTED)


def _run(name: str, options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the tests of a boot that the arguments select, and return pytest's exit code, or 1 without one."""
    started = time.monotonic()
    boot = BOOTS[name]
    modules = (test if "::" in test else f"{test}.py" for test in boot.tests)
    marker = "core" if boot.core else options.marker
    words = [*_PYTEST, "-m", marker, *(f"{_DIRECTORY}/test_{module}" for module in modules), *arguments]
    if arguments:
        # A guest takes minutes; this shows what is wrong with the arguments, or that they select none of its tests.
        command = [sys.executable, *words, "--collect-only", "--quiet", "--quiet"]
        done = subprocess.run(command, cwd=parts.PROJECT, env=os.environ | {boots.VARIABLE: name}, check=False)
        if done.returncode:
            return done.returncode
    try:
        code = _boot(name, options, words, _parts(boot, options))
    except MissingError as error:
        say(f"{_DIRECTORY}::{name} SKIPPED ({error})")
        return int(os.environ.get("E2E_STRICT") == "yes")
    except BrokenError as error:
        say(f"FAILED {_DIRECTORY}::{name} - {error}")
        return 1
    say(f"# {name}: {time.monotonic() - started:.0f} s")
    return code


def _parts(boot: Boot, options: argparse.Namespace) -> dict[str, str]:
    """Return the variables of the guest's environment with the paths of its parts. Raises MissingError."""
    architecture = architectures.ALL[options.arch]
    if boot.native and not architecture.native:
        raise MissingError("requires programs that are built for x86-64 alone")
    if boot.systemd and options.cgroup != "v2":
        raise MissingError("requires this machine's systemd, with cgroup v2")
    parts.install(architecture)
    packages.install(kubelet_parts.PACKAGES if "kubelet" in boot.parts else ())
    packages.install(("systemd", "dbus") if boot.systemd else ())
    runtime = options.runtime or boot.runtime
    builders: dict[str, Callable[[], object]] = {
        "probe": lambda: parts.probe(architecture.user_space),
        "probe32": lambda: parts.probe(architecture.compat),
        "confinement": parts.confinement,
        selinux.PART: selinux.build,
        "android": lambda: _android(boot, options, architecture.user_space),
        "android32": lambda: _android(boot, options, architecture.compat),
        "runtime": lambda: ":".join((runtime, *runtime_parts.programs(runtime))),
        "kubelet": lambda: kubelet_parts.kubernetes(target=architecture.target) / "kubelet",
        "image": lambda: kubelet_parts.plugin_image(architecture.target),
        "kustomize": lambda: deploy_parts.kustomize(architecture.target),
    }
    found = {}
    for name in ("probe", *(("confinement",) if options.confined or boot.confined else ()), *boot.parts):
        try:
            found[world.variable(name)] = str(builders[name]())
        except MissingError as error:
            if not boot.core:
                raise
            found[world.variable(name)] = f"missing: {error}"
        except AssertionError as error:
            raise BrokenError(str(error)) from error
    return found


def _android(boot: Boot, options: argparse.Namespace, user_space: UserSpace) -> Path:
    """Return Android's binder software, unless it cannot work on the boot's kernel. Raises MissingError."""
    if options.confined and boot.security == boots.SELINUX:
        raise MissingError("requires a kernel that boots with SELinux")
    return aosp_parts.build(user_space)


def _boot(name: str, options: argparse.Namespace, arguments: Sequence[str], paths: Mapping[str, str]) -> int:
    """Boot the guest, and return the exit code of pytest with these arguments in it, or 1 if it has not ended."""
    boot, architecture = BOOTS[name], architectures.ALL[options.arch]
    suite = options.kernel or boot.kernel
    if boot.binderfs:
        kernel = kernels.bootable(suite, boot.devices, architecture, boot.modules)
    else:
        kernel = kernels.stock(suite, boot.devices, architecture)
    tree = foreign.tree(architecture)
    # Not to a terminal; and at last the exit code.
    command = [initrd.BUSYBOX, "sh", "-c", f'{{ "$@" 2>&1; echo "{_ENDED}$?"; }} | cat', "sh", tree.python, *arguments]
    environment = {**_ENVIRONMENT, boots.VARIABLE: name, **paths}
    confined = confinement.VARIABLE in paths
    security = "apparmor=1 security=apparmor" if confined else boot.security
    init, before = (systemd.INIT, systemd.BEFORE) if boot.systemd else ((), "")
    if selinux.PART in boot.parts:
        before += selinux.BEFORE
        command = [*selinux.ENTER, *command]
    before += initrd.CGROUP_V1 if options.cgroup == "v1" else ""
    codes: list[int] = []

    def receive(line: str) -> None:
        if line.startswith(_ENDED):
            codes.append(int(line.removeprefix(_ENDED)))
        else:
            say(line)

    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        script = initrd.start_script(command, str(parts.PROJECT), environment, before, architecture, init)
        initrd.build(directory / "initrd", script, kernel.modules, tree.root)
        guest = machine.Guest(
            *(kernel.image, directory / "initrd", directory / "console", boot.memory, boot.options),
            parameters=f"{kernel.parameters} {security}",
            architecture=architecture,
            root=tree.root,
            shared=tree.shared,
            audit=selinux.PART in boot.parts,
        )
        problem = machine.boot(guest, receive, _SECONDS)
        if codes and not problem:
            return codes[0]
        console = guest.console.read_text(errors="replace") if guest.console.exists() else ""
    for line in console.splitlines()[-_CONSOLE_LINES:]:
        say(f"# console: {line.rstrip()}")
    say(f"FAILED {_DIRECTORY}::{name} - {problem or 'the guest ended early'}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
