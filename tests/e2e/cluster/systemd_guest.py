"""A guest that is a node whose init is Debian's systemd: containerd, the kubelet and the plugin can be its units.

The units are in ``/run/systemd/system``, besides those of Debian's package. What the host has in ``/etc`` is not read.
"""

import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.e2e.cluster.guest import ENVIRONMENT, SLOW, GuestMachine, GuestRuntime
from tests.e2e.common.processes import TAIL, Daemon
from tests.e2e.deploy.parts import DEPLOY, PHONES, PROGRAM, PROJECT, SYSTEMD, UNIT
from tests.e2e.kernel import initrd

_FILES: Final = "files"
_UNITS: Final = "run/systemd/system"
_CONTAINERD: Final = "[Unit]\nAfter=local-fs.target\n[Service]\nType=notify\nDelegate=yes\nKillMode=process\n"
_KUBELET: Final = "[Unit]\nAfter=containerd.service\n[Service]\n"
_CHECKOUT: Final = "[Service]\nProtectHome=read-only\nPrivateTmp=no\n"
"""The drop-in of the plugin's unit: its program is the checkout's, which may be in these directories."""


class SystemdGuest(GuestMachine):
    """A guest in which systemd starts containerd and the kubelet, and the plugin if :attr:`host_plugin` is set."""

    host_plugin = ""
    """What the configuration of a plugin on the host has besides that of deploy/base; it is read at each boot."""

    def boot(self, programs: Path, before_kubelet: Callable[[], object] = lambda: None) -> None:
        """Start the guest, whose systemd starts the rest."""
        before_kubelet()
        self._power_on(programs)

    def use(self, programs: Path) -> None:
        """Write the files that the guest copies to its root directory when it boots."""
        assert isinstance(self.runtime, GuestRuntime)
        files = self.directory / _FILES
        shutil.rmtree(files, ignore_errors=True)
        units = files / _UNITS
        wants = units / "multi-user.target.wants"
        wants.mkdir(parents=True)
        # It empties /tmp, which is the host's and may have many files.
        (units / "systemd-tmpfiles-setup.service").symlink_to("/dev/null")
        _write_unit(units / "containerd.service", _CONTAINERD, self.runtime.command)
        _write_unit(units / "kubelet.service", _KUBELET, self._kubelet_command(programs))
        enabled = ["containerd.service", "kubelet.service"]
        if self.host_plugin:
            self._install_plugin(files, units)
            enabled += [PHONES, UNIT]
        for unit in enabled:
            (wants / unit).symlink_to(f"../{unit}")
        self._configure_kubelet()
        self.kubelet, self.runtime.daemon = Unit("kubelet", self), Unit("containerd", self)

    def _install_plugin(self, files: Path, units: Path) -> None:
        """Install the plugin as docs/deploy.md describes it, with a program that runs the checkout's."""
        program, config = files / PROGRAM.lstrip("/"), files / "etc/aosp-plugin/config.yaml"
        checkout, kubelet = units / f"{UNIT}.d/checkout.conf", units / "kubelet.service.d/kubelet.conf"
        for path in (program, config, checkout, kubelet):
            path.parent.mkdir(parents=True)
        script = f'export PYTHONPATH={PROJECT} PYTHONDONTWRITEBYTECODE=1\nexec {sys.executable} -m aosp_plugin "$@"\n'
        program.write_text(f"#!/bin/sh\n{script}")
        program.chmod(0o755)
        config.write_text(f"{(DEPLOY / 'base/config.yaml').read_text()}{self.host_plugin}")
        checkout.write_text(_CHECKOUT)
        shutil.copy(SYSTEMD / "kubelet.conf", kubelet)
        for unit in (PHONES, UNIT):
            shutil.copy(SYSTEMD / unit, units)

    def _start_script(self, command: Sequence[str]) -> str:
        environment = ENVIRONMENT | {"SYSTEMD_UNIT_PATH": f"/{_UNITS}:/lib/systemd/system"}
        copy = f"cp --archive {self.directory}/{_FILES}/. /"
        return initrd.start_script(["exec", *command], str(PROJECT), environment, before=copy)

    def end_in_order(self) -> None:
        """Let systemd stop everything, as at a reboot, which ends QEMU."""
        assert self._process is not None, f"{self.name} does not run"
        self.run("systemctl", "--no-block", "reboot", seconds=SLOW)
        self._process.wait(SLOW)
        self.shut_down()

    def moment(self, unit: str, change: str) -> float:
        """Return when a unit has last changed its state, in seconds since the kernel's start."""
        words = ("systemctl", "show", "--value", f"--property={change}TimestampMonotonic", unit)
        return int(self.run(*words, seconds=SLOW)) / 1e6


class Unit(Daemon):
    """A unit of the guest, which systemd starts."""

    def __init__(self, name: str, machine: SystemdGuest) -> None:
        super().__init__(name, [], machine.directory / f"{name}.log")
        self._machine = machine

    def end(self, number: signal.Signals = signal.SIGTERM, *, seconds: float = SLOW) -> int:
        """Stop the unit."""
        assert number == signal.SIGTERM, "systemd would start it again"
        self._machine.run("systemctl", "stop", self.name, seconds=seconds)
        return 0

    def tail(self) -> str:
        """Return the end of the unit's log."""
        return self._machine.run("journalctl", "--no-pager", f"--lines={TAIL}", f"--unit={self.name}", seconds=SLOW)


def _write_unit(path: Path, text: str, command: Sequence[str]) -> None:
    path.write_text(f"{text}ExecStart={shlex.join(command)}\nRestart=always\n")
