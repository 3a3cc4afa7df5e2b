"""Run a guest in QEMU: with KVM if a guest starts under it, otherwise in software emulation.

A guest of another architecture is always emulated.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.e2e.kernel.architectures import AMD64

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.e2e.kernel.architectures import Architecture


_KVM_PATIENCE: Final = 15.0
"""Seconds within which a guest under KVM must send its first line; on some machines it never starts."""


EMULATION: Final = "tcg,tb-size=1024"
"""The accelerator that works on every machine."""

_CLOCK: Final = ("-icount", "shift=1")
"""The clock of an emulated guest counts instructions, 2 ns each, and follows the host's only while the guest is idle.

On a busy machine, no limit in the guest is reached earlier than on an idle one. A node of a cluster needs the host's
clock.
"""

_COMMAND_LINE: Final = "panic=-1 quiet mitigations=off apparmor=0 audit=0 nokaslr watchdog_thresh=60 softlockup_panic=1"
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

    def command(self, accelerator: str) -> list[str]:
        """Return QEMU's command line."""
        kvm = ("-cpu", "host", "-smp", str(os.cpu_count() or 1))
        return [
            *self._sharing(),
            *(self.architecture.qemu, "-accel", accelerator),
            *(kvm if accelerator == "kvm" else self.architecture.emulated),
            *("-m", str(self.memory)),
            *("-nodefaults", "-display", "none", "-no-reboot"),
            *("-kernel", str(self.kernel), "-initrd", str(self.initrd)),
            *("-append", f"console={self.architecture.console} {_COMMAND_LINE} {self.parameters}"),
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
        run = _Run(guest.command("kvm"), receive)
        if run.wait(seconds, _KVM_PATIENCE) or run.started:
            return run.problem
    run = _Run([*guest.command(EMULATION), *_CLOCK], receive)
    run.wait(seconds, seconds)
    return run.problem


class _Run:
    """One run of QEMU."""

    def __init__(self, command: list[str], receive: Callable[[str], None]) -> None:
        self._command = command
        self._receive = receive
        self.started = False
        self.problem = ""

    def wait(self, seconds: float, first_line: float) -> bool:
        """Wait until QEMU ends, and return whether it sent its first line and ended within these limits in seconds."""
        start = time.monotonic()
        process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        ended = threading.Event()

        def enforce_limits() -> None:
            if not ended.wait(first_line) and not self.started:
                self.problem = f"the guest sent nothing for {first_line:.0f} s"
            elif not ended.wait(max(0.0, seconds - (time.monotonic() - start))):
                self.problem = f"the guest did not end within {seconds:.0f} s"
            else:
                return
            process.kill()

        threading.Thread(target=enforce_limits, daemon=True).start()
        try:
            messages = self._follow(process)
        finally:
            process.kill()
            code = process.wait()
            ended.set()
        if code and not self.problem:
            self.problem = f"QEMU ended with {code}: {messages}"
        return not self.problem

    def _follow(self, process: subprocess.Popen[str]) -> str:
        """Pass on each line of results until QEMU ends, and return QEMU's own messages."""
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            self.started = True
            self._receive(line.strip())
        messages = process.stderr.read().strip()
        process.wait()
        return messages
