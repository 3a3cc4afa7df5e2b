"""In the guest: a phone in which Android's own binder software runs, and what its tools and its tests print there.

The first process of the phone's container is ``clients/android.sh``. Tools and tests run in the same container as
another user. Without a device Android's tools exit with 0, and its tests are skipped: so lines and counts are compared.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from aosp_plugin.backend.driver_kind import has_selinux
from tests.e2e.kernel import tenants
from tests.e2e.kernel.client_parts import VERSIONS
from tests.e2e.kernel.initrd import BUSYBOX
from tests.e2e.kernel.tenants import CLIENT, say
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.kernel.tenants import Phone

SYSTEM, SHELL, APP = 1000, 2000, 10000
"""Users of Android, none of them root."""
COMMAND: Final = "/bin/android.sh"
_PATH: Final = "/bin:/system/bin:/vendor/bin"
_SECURITY: Final = Path("/sys/kernel/security")
_SERVICE: Final = "test.binderLib-"
_MANAGER: Final = "0\tmanager: [android.os.IServiceManager]"

_ENDED: Final = re.compile("android: .* ended with ")
ABORTED, SHARED = "android: servicemanager ended with 134", "Found 3 services:"
"""How broken phones are noticed: the service manager cannot open its device; two phones have one manager."""
_NOTICED: Final = 20.0
"""The limit for a service that is not registered because its phone is broken, in seconds."""
_REFUSALS: Final = ("failed to get security context", "Failed to get security ctx", "transaction failed 29201/")
"""What the kernel's log has: of the C driver, of the one in Rust, and of Linux 5.10, which has no reason."""
_DEBUGGABLE: Final = "requires a debuggable build of Android: binderLibTest.cpp:1447"


class Outcome(NamedTuple):
    """What a program with Android's tests reports."""

    passed: int
    failed: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Return the counts, and the names of the tests that did not pass."""
        names = [f"failed: {', '.join(sorted(self.failed))}"] if self.failed else []
        names += [f"skipped: {', '.join(sorted(self.skipped))}"] if self.skipped else []
        counts = f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        return "; ".join([counts, *names])


FAILING: Final = {
    "BinderLibTest.SchedPolicySet": "the kernel's driver has no scheduling policy of a service, which Android's has: "
    "binderLibTest.cpp:1130",
    "BinderLibTest.InheritRt": "sets a real-time policy, which requires CAP_SYS_NICE; and the same: "
    "binderLibTest.cpp:1141",
}
"""Tests that fail in each unprivileged container on mainline kernels, with the reason and the line of AOSP's source."""
SKIPPED: Final = {
    "BinderLibTest.Freeze": "requires Android's hierarchy of cgroups, /sys/fs/cgroup/uid_0: binderLibTest.cpp:490",
    "BinderLibRpcTest.SetRpcClientDebug": _DEBUGGABLE,
    "BinderLibRpcTest.SetRpcClientDebugTwice": _DEBUGGABLE,
    "BinderLibTest/BinderLibRpcTestP.SetRpcClientDebugNoFd/local": _DEBUGGABLE,
    "BinderLibTest/BinderLibRpcTestP.SetRpcClientDebugNoFd/remote": _DEBUGGABLE,
    "BinderLibTest/BinderLibRpcTestP.SetRpcClientDebugNoKeepAliveBinder/local": _DEBUGGABLE,
    "BinderLibTest/BinderLibRpcTestP.SetRpcClientDebugNoKeepAliveBinder/remote": _DEBUGGABLE,
}
"""Tests that skip themselves, likewise."""
_SHORT: Final = {"binderDriverInterfaceTest": Outcome(17), "binderClearBufTest": Outcome(1)}
TESTS: Final = {
    **_SHORT,
    "binderSafeInterfaceTest": Outcome(17),
    "binderLibTest": Outcome(47, frozenset(FAILING), frozenset(SKIPPED)),
}
QUICK: Final = {**_SHORT, "binderLibTest --gtest_filter=BinderLibTest.GotSid": Outcome(1)}
"""GotSid is the test of a caller's security context."""


def works(phone: Phone, other: str, *, seconds: float = PATIENCE) -> None:
    """Check that Android's tools list the phone's services on each device, and find nothing of the other phone."""
    registered(phone, seconds=seconds)
    assert _sees_selinux(phone)
    own = f"{_SERVICE}{phone.name}"
    tenants.talk(
        phone,
        {
            "timeout 60 service list": ["Found 2 services:", _MANAGER, f"1\t{own}: []"],
            "timeout 60 vndservice list": ["Found 1 services:", _MANAGER],
            "timeout 60 service check manager": ["Service manager: found"],
            f"timeout 60 service check {own}": [f"Service {own}: found"],
            f"timeout 60 service check {_SERVICE}{other}": [f"Service {_SERVICE}{other}: not found"],
            "timeout 60 dumpsys -l": ["Currently running services:", "  manager", f"  {own}"],
        },
        path=_PATH,
    )
    ended = [line for line in phone.log() if _ENDED.match(line)]
    assert not ended, f"{phone.name}: {'; '.join(ended)}"


def noticed(phone: Phone, other: str, reason: str) -> None:
    """Check that :func:`works` fails with a phone that is broken, for this reason, and print how."""
    try:
        works(phone, other, seconds=_NOTICED)
    except AssertionError as error:
        found = f"{error}; open: {_run(phone, '(: <> /dev/binder)')}; log: {phone.log()}"
    else:
        raise AssertionError(f"{phone.name}: a broken phone is not noticed")
    assert reason in found, f"{phone.name}: not noticed because of {reason!r}: {found}"
    say(f"noticed: {reason}: {found}")


def alone(phone: Phone) -> None:
    """Check that the phone's service manager still has the phone's service alone."""
    own = f"{_SERVICE}{phone.name}"
    tenants.talk(phone, {"timeout 60 dumpsys -l": ["Currently running services:", "  manager", f"  {own}"]}, path=_PATH)


def registered(phone: Phone, *, seconds: float = PATIENCE) -> None:
    """Wait until the phone's service is registered."""
    own = f"{_SERVICE}{phone.name}"
    _until(phone, f"service check {own}", [f"Service {own}: found"], seconds=seconds)


def service_dies(phone: Phone) -> None:
    """Kill the phone's service: its service manager is notified of the death, and drops the service."""
    _run(phone, "busybox killall -KILL binderLibTest", user=SYSTEM)
    own = f"{_SERVICE}{phone.name}"
    _until(phone, f"service check {own}", [f"Service {own}: not found"])
    say(f"{phone.name}: killed the service; it is no longer found")


def manager_dies(phone: Phone) -> None:
    """Kill the phone's service manager; the other processes of its container run on."""
    _run(phone, "busybox killall -KILL servicemanager", user=SYSTEM)
    until(lambda: "android: servicemanager ended with 137" in phone.log(), f"{phone.name}: the manager has ended")
    say(f"{phone.name}: killed the service manager")


def run_tests(phone: Phone, tests: Mapping[str, Outcome] = TESTS) -> None:
    """Run programs with Android's tests as a user of an app, print what they report, and compare it."""
    wrong = []
    for program, expected in tests.items():
        lines = _run(phone, f"timeout 500 /system/bin/{program}")
        outcome = _outcome(lines)
        say(f"{phone.name}: {program}: {outcome}")
        if outcome != expected:
            wrong.append(f"{program}: {outcome}, expected: {expected}; {' | '.join(lines[-5:])}")
    assert not wrong, f"{phone.name}: {'; '.join(wrong)}"


def throughput(phone: Phone) -> float:
    """Run Android's binderThroughputTest, both sides in the phone, and return its transactions per second."""
    lines = _run(phone, "busybox timeout 500 binderThroughputTest -w 2 -i 2000")
    found = [line.split()[-1] for line in lines if line.startswith("iterations per sec: ")]
    assert found, f"{phone.name}: binderThroughputTest: {lines[-5:]}"
    return float(found[0])


def aborted(phone: Phone, user: int, before: int) -> None:
    """Check that the service managers of another user than ``before`` abort, and that only the kernel's log says why.

    They write their messages to /dev/kmsg, which a container does not have.
    """
    lines = {
        f"android: {command} ended with 134"
        for command in (
            "servicemanager",
            "servicemanager /dev/hwbinder",
            "/vendor/bin/vndservicemanager /dev/vndbinder",
        )
    }
    until(lambda: lines <= {*phone.log()}, f"{phone.name}: the service managers abort")
    for line in sorted(lines):
        say(f"{phone.name}: {line}")
    tenants.bad_uid(user, before)


def unanswered(phone: Phone, *, apparmor: bool) -> None:
    """Check what a kernel without security contexts does: no service is found, and only the kernel's log says why."""
    modules = (_SECURITY / "lsm").read_text().split(",")
    assert ("apparmor" in modules) is apparmor, modules
    _until(phone, "service list", ["Found 0 services:"])
    assert not _sees_selinux(phone)
    say(f"{phone.name}: service list: Found 0 services:")
    log = subprocess.run([BUSYBOX, "dmesg"], capture_output=True, text=True, check=True).stdout.splitlines()
    lines = [line for line in log if any(text in line for text in _REFUSALS)]
    assert lines, log[-5:]
    say(f"kernel: {lines[0]}")


def _sees_selinux(phone: Phone) -> bool:
    """Return whether the kernel has SELinux, which a process in a container sees as one outside does."""
    inside = any("selinuxfs" in line for line in _run(phone, "busybox cat /proc/filesystems"))
    assert inside == has_selinux(), inside
    return inside


def _until(phone: Phone, words: str, expected: list[str], *, seconds: float = PATIENCE) -> None:
    """Wait until a command prints these lines."""

    def printed() -> bool:
        lines = _run(phone, f"timeout 60 {words}")
        assert lines == expected, f"{lines}; {phone.log()[-3:]}"
        return True

    until(printed, f"{phone.name}: {words}: {' '.join(expected)}", seconds=seconds)


def _run(phone: Phone, words: str, user: int = CLIENT) -> list[str]:
    """Run a command in the phone, and return the lines of both outputs, without the log of Android's libraries."""
    script = f"export PATH={_PATH}; cd /tmp; {words} 2>&1; true"
    lines = phone.execute(user, "/bin/busybox", "sh", "-c", script).splitlines()
    return [line.rstrip() for line in lines if not re.match(r"\d\d-\d\d \d\d:", line)]


def _outcome(lines: list[str]) -> Outcome:
    """Return what googletest has reported at the end."""
    text = "\n".join(lines)
    passed = re.search(r"^\[  PASSED  \] (\d+) test", text, re.MULTILINE)

    def named(word: str) -> frozenset[str]:
        listed = re.findall(rf"^\[  {word} +\] (\S+\.\S+)$", text, re.MULTILINE)
        return frozenset(listed)

    return Outcome(int(passed[1]) if passed else 0, named("FAILED"), named("SKIPPED"))


def prepare(root: Path, part: Path) -> None:
    """Make the root directory of the containers."""
    say(f"{part.name}: {' '.join((part / VERSIONS).read_text().split())}")
    subprocess.run(("mount", "-t", "securityfs", "securityfs", str(_SECURITY)), check=True)
    say(f"security modules: {(_SECURITY / 'lsm').read_text()}; SELinux: {has_selinux()}")
    tenants.assemble(root, part)
