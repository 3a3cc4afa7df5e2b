"""The guest: QEMU with KVM where it really starts a guest, with software emulation where it does not."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_KVM_PATIENCE: Final = 15.0
"""Seconds until a guest under KVM has to say its first word: there are machines where it never does."""


class Guest(NamedTuple):
    """A kernel to boot, and where its console goes."""

    kernel: Path
    initrd: Path
    console: Path
    memory: int
    """MiB."""

    def command(self, accelerator: str) -> list[str]:
        """Return the command that boots it."""
        cpu = "host" if accelerator == "kvm" else "max"
        return [
            *(
                "qemu-system-x86_64",
                "-accel",
                accelerator,
                "-cpu",
                cpu,
                "-m",
                str(self.memory),
                "-smp",
                str(os.cpu_count() or 1),
            ),
            *("-nodefaults", "-display", "none", "-no-reboot"),
            *("-kernel", str(self.kernel), "-initrd", str(self.initrd)),
            *("-append", "console=ttyS0 panic=-1 quiet mitigations=off"),
            *("-serial", f"file:{self.console}", "-serial", "stdio"),
            *("-virtfs", "local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap"),
        ]


def boot(guest: Guest, hear: Callable[[str], None], seconds: float) -> str:
    """Boot, hand each line of results to ``hear``, and return how it ended: empty, or that the time was up."""
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        run = _Run(guest.command("kvm"), hear)
        if run.to_the_end(seconds, _KVM_PATIENCE) or run.heard:
            return run.problem
    run = _Run(guest.command("tcg,thread=multi,tb-size=1024"), hear)
    run.to_the_end(seconds, seconds)
    return run.problem


class _Run:
    """One run of QEMU."""

    def __init__(self, command: list[str], hear: Callable[[str], None]) -> None:
        self._command = command
        self._hear = hear
        self.heard = False
        self.problem = ""

    def to_the_end(self, seconds: float, first_word: float) -> bool:
        """Run until QEMU ends, ``seconds`` are over, or nothing was heard for ``first_word``; say if it ended."""
        start = time.monotonic()
        process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        ended = threading.Event()

        def guard() -> None:
            if not ended.wait(first_word) and not self.heard:
                self.problem = f"nothing was heard of the guest for {first_word:.0f} s"
            elif not ended.wait(max(0.0, seconds - (time.monotonic() - start))):
                self.problem = f"the guest was not done within {seconds:.0f} s"
            else:
                return
            process.kill()

        threading.Thread(target=guard, daemon=True).start()
        try:
            said = self._follow(process)
        finally:
            process.kill()
            code = process.wait()
            ended.set()
        if code and not self.problem:
            self.problem = f"QEMU ended with {code}: {said}"
        return not self.problem

    def _follow(self, process: subprocess.Popen[str]) -> str:
        """Hand on each line of results until QEMU ends, and return what QEMU itself said."""
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            self.heard = True
            self._hear(line.strip())
        said = process.stderr.read().strip()
        process.wait()
        return said
