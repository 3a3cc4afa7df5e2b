"""The plugin as a service of a host, outside the cluster, started before the kubelet as deploy/systemd describes."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import plugin
from tests.e2e.kubelet.parts import PROJECT
from tests.e2e.kubelet.processes import EnteredDaemon

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

_DROP_IN: Final = "deploy/systemd/kubelet.conf"


class HostPlugin:
    """The plugin's process on a machine; without systemd, so it ends when the machine does."""

    def __init__(self, cluster: Cluster, machine: Machine) -> None:
        """Write the configuration."""
        self._machine = machine
        self._directory = cluster.directory
        self._config = cluster.directory / "host-plugin.json"
        self._config.write_text(json.dumps(plugin.VALUES["config"]))
        self.daemon: EnteredDaemon | None = None

    def start(self) -> None:
        """Start the process in the machine's present namespaces, and wait as the kubelet's drop-in does."""
        command = [*self._machine.enter(), sys.executable, "-m", "aosp_plugin", "serve", f"--config={self._config}"]
        log = self._directory / "host-plugin.log"
        self.daemon = EnteredDaemon("plugin", command, log, {"PYTHONPATH": str(PROJECT)})
        self.daemon.start()
        (line,) = re.findall(r"(?m)^ExecStartPre=-(.*)$", (PROJECT / _DROP_IN).read_text(encoding="utf-8"))
        self._machine.run(*shlex.split(line))

    def stop(self) -> None:
        """Stop the process."""
        if self.daemon is not None and self.daemon.running:
            self.daemon.end()


@contextlib.contextmanager
def running(cluster: Cluster, machine: Machine) -> Iterator[HostPlugin]:
    """Run the plugin as a process of a machine."""
    host_plugin = HostPlugin(cluster, machine)
    host_plugin.start()
    try:
        yield host_plugin
    finally:
        host_plugin.stop()
