"""In the guest: a phone in which Android's own binder software runs, and what its tools and its tests print there.

The first process of the phone's container is ``android.sh``. Tools and tests run in the same container as
another user. Without a device Android's tools exit with 0, and its tests are skipped: so lines and counts are compared.
"""

import difflib
import re
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from aosp_plugin.binder.driver.host import has_selinux
from tests.e2e.common.report import say
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.kernel.aosp_parts import VERSIONS
from tests.e2e.kernel.initrd import BUSYBOX
from tests.e2e.kernel.parts import HERE
from tests.e2e.kernel.world import COMPAT

SYSTEM, SHELL, APP = 1000, 2000, 10000
"""Users of Android, none of them root."""
CLIENT: Final = 4242
"""The user of the clients."""
COMMAND: Final = "/bin/android.sh"
SCRIPT: Final = f"exec {COMMAND} $HOSTNAME"
"""In a pod: runs the service managers, and a service with the pod's name."""
RESTRICTED: Final = {
    "runAsUser": SYSTEM,
    "runAsGroup": SYSTEM,
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context that the Pod Security Standard "restricted" admits."""
_PATH: Final = "/bin:/system/bin{0}:/vendor/bin{0}"
"""The names of the directories with 32-bit programs end with COMPAT."""
_ELF_CLASS_32: Final = 1
"""In the header of a 32-bit program."""
_SECURITY: Final = Path("/sys/kernel/security")
_SERVICE: Final = "test.binderLib-"
_MANAGER: Final = "0\tmanager: [android.os.IServiceManager]"

_ENDED: Final = re.compile("android: .* ended with ")
_CALLS: Final = 40_000
"""What a client calls that runs while something else happens: it takes seconds."""
_REFUSALS: Final = ("failed to get security context", "Failed to get security ctx", "transaction failed 29201/")
"""What the kernel's log has: of the C driver, of the one in Rust, and of Linux 5.10, which has no reason."""
_DEBUGGABLE: Final = "requires a debuggable build of Android"


class Phone(Protocol):
    """A phone's container."""

    name: str

    def execute(self, user: int, *words: str) -> str:
        """Run a program in the container as a user, and return its output."""

    def log(self) -> list[str]:
        """Return the lines that the container's processes have printed since its last start."""


class Outcome(NamedTuple):
    """What a program with Android's tests reports: tests that did not pass, each with the lines of its source."""

    passed: int
    failed: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()


FAILING: Final = {
    "BinderLibTest.SchedPolicySet:1130+1131": "the kernel's driver has no scheduling policy of a "
    "service, which Android's has",
    "BinderLibTest.InheritRt:1141+1150+1151": "sets a real-time policy, which requires CAP_SYS_NICE; and the same",
}
"""Tests that fail in each unprivileged container on mainline kernels, with lines of binderLibTest.cpp, and why."""
SKIPPED: Final = {
    "BinderLibTest.Freeze:491": "requires Android's hierarchy of cgroups, /sys/fs/cgroup/uid_0",
    "BinderLibRpcTest.SetRpcClientDebug:1448": _DEBUGGABLE,
    "BinderLibRpcTest.SetRpcClientDebugTwice:1448": _DEBUGGABLE,
    "BinderLibTest/BinderLibRpcTestP.SetRpcClientDebugNoFd/local:1448": _DEBUGGABLE,
    "BinderLibTest/BinderLibRpcTestP.SetRpcClientDebugNoFd/remote:1448": _DEBUGGABLE,
    "BinderLibTest/BinderLibRpcTestP.SetRpcClientDebugNoKeepAliveBinder/local:1448": _DEBUGGABLE,
    "BinderLibTest/BinderLibRpcTestP.SetRpcClientDebugNoKeepAliveBinder/remote:1448": _DEBUGGABLE,
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


def works(phone: Phone, other: str, *, seconds: float = PATIENCE, bits: str = "") -> None:
    """Check that Android's tools list the phone's services on each device, and find nothing of the other phone.

    ``bits`` is COMPAT for the 32-bit tools.
    """
    registered(phone, seconds=seconds)
    assert _sees_selinux(phone)
    own = f"{_SERVICE}{phone.name}"
    _talk(
        phone,
        {
            "timeout 60 service list": _services(phone),
            "timeout 60 vndservice list": ["Found 1 services:", _MANAGER],
            "timeout 60 service check manager": ["Service manager: found"],
            f"timeout 60 service check {own}": [f"Service {own}: found"],
            f"timeout 60 service check {_SERVICE}{other}": [f"Service {_SERVICE}{other}: not found"],
            "timeout 60 dumpsys -l": ["Currently running services:", "  manager", f"  {own}"],
        },
        bits,
    )
    ended = [line for line in phone.log() if _ENDED.match(line)]
    assert not ended, f"{phone.name}: {'; '.join(ended)}"


def _talk(phone: Phone, conversation: dict[str, list[str]], bits: str = "") -> None:
    """Run commands in the phone as the clients' user, and check what they print."""
    commands = [f"export PATH={_PATH.format(bits)}", *(f"echo '$ {words}'; {words} 2>&1" for words in conversation)]
    printed = phone.execute(CLIENT, "/bin/busybox", "sh", "-c", "; ".join([*commands, "true"])).splitlines()
    expected = [line for words, lines in conversation.items() for line in (f"$ {words}", *lines)]
    assert printed == expected, f"{phone.name}: " + "; ".join(difflib.unified_diff(expected, printed, n=0, lineterm=""))


def _services(phone: Phone) -> list[str]:
    return ["Found 2 services:", _MANAGER, f"1\t{_SERVICE}{phone.name}: []"]


def alone(phone: Phone) -> None:
    """Check that the phone's manager still lists the phone's service alone."""
    _talk(phone, {"timeout 60 service list": _services(phone)})


def registered(phone: Phone, *, seconds: float = PATIENCE) -> None:
    """Wait until the phone's service is registered."""
    own = f"{_SERVICE}{phone.name}"
    _until(phone, f"service check {own}", [f"Service {own}: found"], seconds=seconds)


def apart(phone: Phone, neighbour: Phone) -> None:
    """Kill the phone's service, which its service manager drops, and the service manager.

    The neighbour's clients notice nothing: one that runs meanwhile goes on to its end, and then new ones work.
    """
    own = f"{_SERVICE}{phone.name}"
    _run(phone, "busybox killall -KILL binderLibTest", user=SYSTEM)
    _until(phone, f"service check {own}", [f"Service {own}: not found"])
    with ThreadPoolExecutor(max_workers=1) as threads:
        client = threads.submit(_call, neighbour)
        until(
            lambda: any("binderWorker" in line for line in _run(neighbour, "timeout 60 service list")),
            f"{neighbour.name}: a client runs",
        )
        _run(phone, "busybox killall -KILL servicemanager", user=SYSTEM)
        assert not client.done(), f"{neighbour.name}: the client ended too early"
        until(lambda: "android: servicemanager ended with 137" in phone.log(), f"{phone.name}: the manager has ended")
        client.result()
    _until(neighbour, "service list", _services(neighbour))  # the client's own are gone
    works(neighbour, phone.name)


def run_tests(phone: Phone, tests: Mapping[str, Outcome] = TESTS, bits: str = "") -> None:
    """Run programs with Android's tests as a user of an app, and compare what they report; ``bits`` as in works."""
    wrong = []
    for program, expected in tests.items():
        # The log of Android's libraries would get into googletest's lines.
        lines = _run(phone, f"{{ timeout 500 /system/bin{bits}/{program} 2>/dev/null; }}")
        outcome = _outcome(lines)
        if outcome != expected:
            wrong.append(f"{program}: {outcome}, expected: {expected}; {' | '.join(lines[-5:])}")
    assert not wrong, f"{phone.name}: {'; '.join(wrong)}"


def across(phone: Phone) -> None:
    """Run binderLibTest with a client of 64 bits and servers of 32, and the other way round."""
    for client, server in (("", COMPAT), (COMPAT, "")):
        program = f"binderLibTest --servername /system/bin{server}/binderLibTest '--gtest_filter=*'"
        run_tests(phone, {program: TESTS["binderLibTest"]}, client)


def _call(phone: Phone) -> None:
    """Run Android's binderThroughputTest, both sides in the phone, to its end."""
    lines = _run(phone, f"busybox timeout 500 binderThroughputTest -w 2 -i {_CALLS}")
    ended = any(line.startswith("iterations per sec: ") for line in lines)
    assert ended, f"{phone.name}: binderThroughputTest: {lines[-5:]}"


def unanswered(phone: Phone) -> None:
    """Check what a kernel without security contexts does: no service is found, and only the kernel's log says why."""
    modules = (_SECURITY / "lsm").read_text().split(",")
    assert "apparmor" in modules, modules
    _until(phone, "service list", ["Found 0 services:"])
    assert (_sees_selinux(phone), has_selinux()) == (False, False)
    log = subprocess.run([BUSYBOX, "dmesg"], capture_output=True, text=True, check=True).stdout.splitlines()
    lines = [line for line in log if any(text in line for text in _REFUSALS)]
    assert lines, log[-5:]


def _sees_selinux(phone: Phone) -> bool:
    """Return whether a process in the container sees that the kernel has SELinux."""
    return any("selinuxfs" in line for line in _run(phone, "busybox cat /proc/filesystems"))


def _until(phone: Phone, words: str, expected: list[str], *, seconds: float = PATIENCE) -> None:
    """Wait until a command prints these lines."""

    def printed() -> bool:
        lines = _run(phone, f"timeout 60 {words}")
        assert lines == expected, f"{lines}; {phone.log()[-3:]}"
        return True

    until(printed, f"{phone.name}: {words}: {' '.join(expected)}", seconds=seconds)


def _run(phone: Phone, words: str, user: int = CLIENT) -> list[str]:
    """Run a command in the phone, and return the lines of both outputs, without the log of Android's libraries."""
    script = f"export PATH={_PATH.format('')}; cd /tmp; {words} 2>&1; true"
    lines = phone.execute(user, "/bin/busybox", "sh", "-c", script).splitlines()
    return [line.rstrip() for line in lines if not re.match(r"\d\d-\d\d \d\d:", line)]


def _outcome(lines: list[str]) -> Outcome:
    """Return what googletest has reported."""
    passed = 0
    reached: list[str] = []
    found: dict[str, set[str]] = {"FAILED": set(), "SKIPPED": set()}
    for line in lines:
        if line.startswith("[ RUN      ] "):
            reached = []
        elif place := re.match(r".*\.cpp:(\d+): (?:Failure|Skipped)$", line):
            reached.append(place[1])
        elif ended := re.match(r"\[ +(FAILED|SKIPPED) +\] (\S+\.\S+?)(?:, where .*)? \(\d+ ms\)$", line):
            found[ended[1]].add(f"{ended[2]}:{'+'.join(reached)}")
        elif count := re.match(r"\[  PASSED  \] (\d+) test", line):
            passed = int(count[1])
    return Outcome(passed, frozenset(found["FAILED"]), frozenset(found["SKIPPED"]))


def prepare(root: Path, part: Path) -> None:
    """Make the root directory of the containers."""
    say(f"{part.name}: {' '.join((part / VERSIONS).read_text().split())}")
    if not _SECURITY.is_mount():
        subprocess.run(("mount", "-t", "securityfs", "securityfs", str(_SECURITY)), check=True)
    say(f"security modules: {(_SECURITY / 'lsm').read_text()}; SELinux: {has_selinux()}")
    assemble(root, part)


def add_compat(root: Path, part: Path) -> None:
    """Add the 32-bit programs to the root directory of the containers."""
    for name in ("system/bin", "vendor/bin"):
        shutil.copytree(part / name, root / f"{name}{COMPAT}")
    for name in ("lib", "usr"):
        shutil.copytree(part / name, root / name, dirs_exist_ok=True)
    elf_class = (root / f"system/bin{COMPAT}/service").read_bytes()[4]
    assert elf_class == _ELF_CLASS_32, elf_class


def assemble(root: Path, android: Path, machine: Path = Path("/")) -> None:
    """Copy Android's programs, and busybox of a machine's file tree, into the root directory of a container."""
    for name in ("bin", "proc", "sys", "dev", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copytree(android, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns(VERSIONS))
    shutil.copy(f"{machine}{BUSYBOX}", root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    shutil.copy(HERE / "android.sh", root / "bin")
    (root / "tmp").chmod(0o1777)
