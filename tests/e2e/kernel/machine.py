"""Run a guest in QEMU: with KVM if a guest starts under it, otherwise in software emulation.

A guest of another architecture is always emulated.
"""

import os
import shlex
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.e2e.kernel.architectures import AMD64, Architecture

_KVM_PATIENCE: Final = 15.0
"""Seconds within which a guest under KVM must send its first line; on some machines it never starts."""


EMULATION: Final = "tcg,tb-size=1024"
"""The accelerator that works on every machine."""

CLOCK: Final = ("-icount", "shift=1")
"""The clock of an emulated guest counts instructions, 2 ns each, and follows the host's only while the guest is idle.

On a busy machine, no limit in the guest is reached earlier than on an idle one, and what programs do at intervals takes
no larger share of their time. A control plane on the host has to wait longer for such a node.
"""

_COMMAND_LINE: Final = "panic=-1 quiet mitigations=off apparmor=0 nokaslr watchdog_thresh=60 softlockup_panic=1"
"""The kernel's command line: a guest whose CPU hangs for two minutes ends."""


class Guest(NamedTuple):
    """A kernel, its initrd, the file for its console, its memory, and further options of QEMU."""

    kernel: Path
    initrd: Path
    console: Path
    memory: int
    """MiB."""
    options: Sequence[str] = ()
    parameters: str = ""
    """What the kernel's command line has besides."""
    architecture: Architecture = AMD64
    root: Path = Path("/")
    """The file tree that the guest has."""
    shared: Sequence[Path] = ()
    """Directories of this machine that are in the file tree at the same paths."""
    audit: bool = False
    """Whether the kernel logs what a security module denies."""

    def command(self, accelerator: str) -> list[str]:
        """Return QEMU's command line."""
        audit = "audit=1 log_buf_len=8M" if self.audit else "audit=0"
        kvm = ("-cpu", "host", "-smp", str(os.cpu_count() or 1))
        return [
            *self._sharing(),
            *(self.architecture.qemu, "-accel", accelerator),
            *(kvm if accelerator == "kvm" else self.architecture.emulated),
            *("-m", str(self.memory)),
            *("-nodefaults", "-display", "none", "-no-reboot"),
            *("-kernel", str(self.kernel), "-initrd", str(self.initrd)),
            *("-append", f"console={self.architecture.console} {_COMMAND_LINE} {audit} {self.parameters}"),
            *("-serial", f"file:{self.console}", *self.architecture.results_options),
            *("-virtfs", f"local,path={self.root},mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap"),
            *self.options,
        ]

    def _sharing(self) -> list[str]:
        """Return the words before QEMU's command line that mount the shared directories for QEMU alone."""
        if not self.shared:
            return []
        mounts = []
        for path in self.shared:
            source, target = shlex.quote(str(path)), shlex.quote(f"{self.root}{path}")
            mounts.append(f"mkdir --parents {target}; mount --bind {source} {target}")
        script = "\n".join([*mounts, 'exec "$@"'])
        return ["unshare", "--mount", "--propagation", "private", "sh", "-e", "-c", script, "sh"]


def boot(guest: Guest, receive: Callable[[str], None], seconds: float) -> str:
    """Boot, pass each line of results to ``receive``, and return the problem that ended the guest, or ""."""
    if guest.architecture.native and os.access("/dev/kvm", os.R_OK | os.W_OK):
        started, problem = _run(guest.command("kvm"), receive, seconds, _KVM_PATIENCE)
        if started or not problem:
            return problem
    return _run([*guest.command(EMULATION), *CLOCK], receive, seconds, seconds)[1]


def _run(command: Sequence[str], receive: Callable[[str], None], seconds: float, first_line: float) -> tuple[bool, str]:
    """Run QEMU within limits in seconds. Return whether it sent a line, and the problem that ended it, or ""."""
    problems: list[str] = []
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None

    def end(problem: str) -> None:
        problems.append(problem)
        process.kill()

    silence = threading.Timer(first_line, end, [f"the guest sent nothing for {first_line:.0f} s"])
    limit = threading.Timer(seconds, end, [f"the guest did not end within {seconds:.0f} s"])
    started = False
    try:
        silence.start()
        limit.start()
        for line in process.stdout:
            started = True
            silence.cancel()
            receive(line.rstrip())
        _, messages = process.communicate()
    finally:
        silence.cancel()
        limit.cancel()
        process.kill()
        process.wait()
    if process.returncode:
        problems.append(f"QEMU ended with {process.returncode}: {messages.strip()}")
    return started, problems[0] if problems else ""
