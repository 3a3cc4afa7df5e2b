"""A feature file for Node Feature Discovery, whose worker turns its lines into labels of the Node.

The ``local`` source of NFD reads the files in /etc/kubernetes/node-feature-discovery/features.d, except those whose
names begin with a dot; a line is ``KEY=VALUE``, and a comment ``# +expiry-time=TIME`` makes it ignore the lines that
follow from then on (source/local/local.go). By default, NFD accepts labels of any domain but kubernetes.io.

The file stays when the plugin ends, because an update would otherwise take the labels away for a minute or more.
Instead, it has an expiry time, which the plugin extends: after the plugin has gone for good, so do the labels.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.devices.scanner import main_kind
from aosp_plugin.binder.driver.host import has_selinux
from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.timings import DEFAULT, Timings
from aosp_plugin.framework.worker import Worker

LOG = logging.getLogger(__name__)


class Feature(NamedTuple):
    """A resource whose labels the file has."""

    server: ResourceServer
    backend: BinderBackend


class FeatureFile:
    """Keeps the file current. For one event loop; the host is accessed in the worker thread."""

    def __init__(
        self,
        path: str,
        features: Sequence[Feature],
        worker: Worker,
        *,
        timings: Timings = DEFAULT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``path`` is a path of this process; ``clock`` returns seconds since the epoch."""
        self._path = path
        self._features = features
        self._worker = worker
        self._timings = timings
        self._clock = clock
        self._snapshots: tuple[Snapshot, ...] = ()
        self._written: tuple[Snapshot, ...] = ()
        self._lines: list[str] = []
        self._renew_at = 0.0

    def observe(self) -> None:
        """Read the devices of the resources."""
        self._snapshots = tuple(feature.server.inventory.snapshot for feature in self._features)

    async def write(self) -> None:
        """Write the file when all devices have been scanned, after changes, and before it expires.

        Raises OSError, HostError and PluginError.
        """
        snapshots = self._snapshots
        if all(snapshot.revision for snapshot in snapshots) and self._is_due(snapshots):
            await self._worker.run(partial(self._update, snapshots), self._timings.hang, label="feature file")
            self._written = snapshots

    def _is_due(self, snapshots: tuple[Snapshot, ...]) -> bool:
        # A clock that was set back would let the file expire late; one that was set forward makes it due.
        remaining = self._renew_at - self._clock()
        return snapshots != self._written or not 0 < remaining <= self._timings.feature_renewal

    def _update(self, snapshots: Sequence[Snapshot]) -> None:
        """Write the file; in the worker thread."""
        lines = [line for pair in zip(self._features, snapshots, strict=True) for line in labels(*pair)]
        now = self._clock()
        expiry = datetime.fromtimestamp(now + self._timings.feature_lifetime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        head = ["# Written by aosp-device-plugin (feature_file).", f"# +expiry-time={expiry}"]
        self._replace("".join(f"{line}\n" for line in [*head, *lines]).encode())
        if lines != self._lines:
            LOG.info("feature file written", extra={"path": self._path})
        self._lines, self._renew_at = lines, now + self._timings.feature_renewal

    def _replace(self, content: bytes) -> None:
        directory, name = os.path.split(self._path)
        try:
            atomic_file.sweep(directory, re.escape(name))
            atomic_file.replace(self._path, content)
        except OSError as error:  # name the file instead of the temporary one, whose name differs each time
            raise OSError(error.errno, error.strerror, self._path) from error


def labels(feature: Feature, snapshot: Snapshot) -> list[str]:
    """Return the lines of a resource. Reads the host."""
    driver = feature.backend.driver if snapshot.devices else ""
    kind = main_kind([each for group in feature.backend.binder_devices().values() for each in group])
    values = {
        "count": str(len(snapshot.devices)),
        "healthy": str(snapshot.healthy),
        "kind": kind or "binderfs" * (bool(driver) and feature.server.driver is not None),  # no claim has a phone yet
        "driver": driver,
        "selinux": str(has_selinux()).lower(),
    }
    return [f"{feature.server.resource_name}.{name}={value}" for name, value in values.items() if value]
