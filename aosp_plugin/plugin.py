"""Binder as a backend of ``deviceplugin``: the one place where both meet.

The way of a node through here: ``refresh`` takes a look (``binder.scanner``), judges it (``binder.health``) and
keeps the outcome; ``devices`` tells it to the kubelet; ``allocate`` turns IDs back into nodes and these into what a
container needs (``binder.edits``).
"""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from typing import TYPE_CHECKING

from aosp_plugin.binder import binderfs, edits, health, scanner, sets
from aosp_plugin.binder.host import Driver
from aosp_plugin.binder.nodes import natural_key
from aosp_plugin.deviceplugin.api import deviceplugin_pb2 as pb
from aosp_plugin.deviceplugin.inventory import Device
from aosp_plugin.errors import BinderfsError, DeviceDirectoryError, NotPermittedError, UnhealthyDeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aosp_plugin.binder.health import Reason, Tracked, Verify
    from aosp_plugin.binder.host import Host
    from aosp_plugin.binder.nodes import FileSystem, Node

LOG = logging.getLogger(__name__)


class BinderBackend:
    """The binder nodes of one host as devices of one resource."""

    prefers = True
    prepares = False

    def __init__(
        self,
        host: Host,
        *,
        directory: str,
        prefix: str,
        verify: Verify,
        forget_after: float,
        policy: edits.Policy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the nodes of ``directory`` that begin with ``prefix``; ``forget_after`` is in seconds."""
        self._host = host
        self._directory = os.path.normpath(directory)
        self._prefix = prefix
        self._verify = verify
        self._forget_after = forget_after
        self._policy = policy
        self._clock = clock
        self._tracked: Mapping[str, Tracked] | None = None
        self._order: Sequence[str] = ()
        self._skipped: set[str] = set()
        self._present: frozenset[str] | None = None
        self._targets: frozenset[str] = frozenset({self._directory})
        self._driver = Driver()
        self._told_of_probe = False
        self._forget = False

    def devices(self) -> list[Device]:
        """Return the nodes in natural order."""
        tracked = self._tracked or {}
        return [Device(name, tracked[name].reason or "") for name in self._order]

    def directories(self) -> frozenset[str]:
        """Return the device directory and those that its links lead into."""
        return frozenset(self._host.seen(self._host.resolve(directory)) for directory in self._targets)

    def refresh(self) -> None:
        """Look at the host again.

        A device directory that was never there is an error, since its name is most likely wrong; one that
        vanishes later has lost all its nodes. Raises DeviceDirectoryError and OSError.
        """
        driver = self._host.driver()
        try:
            scan = scanner.scan(self._host, driver, self._directory, self._prefix)
        except (FileNotFoundError, NotADirectoryError) as error:
            if self._tracked is None:
                raise DeviceDirectoryError(f"the device directory {self._directory} can't be read: {error}") from error
            scan = scanner.Scan((), {}, frozenset({self._directory}))
        self._warn_of(scan.skipped)
        self._look_for_shared_paths()
        known = {} if self._forget else self._tracked or {}
        self._forget = False
        judgement = partial(self._judge, probe=self._probe)
        tracked = health.follow(known, scan.nodes, self._clock(), self._forget_after, judgement)
        order = sorted(tracked, key=natural_key)
        self._driver = driver
        self._targets = scan.directories
        self._order = order
        self._tracked = tracked

    def forget(self) -> None:
        """Have the next look take the nodes that are there for the right ones, whatever was there before."""
        self._forget = True

    def allocate(self, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        """Return what a container needs for the nodes ``ids``. Raises UnhealthyDeviceError.

        Each is looked at once more: between the last look and this moment it may have become something else. What
        belongs to the driver is taken from the last look: a binderfs that was mounted since is none of those it
        knows, and its nodes are on another file system than before.
        """
        look = scanner.Look(self._host, self._driver, self._directory)
        nodes = [self._still_fit(look, name) for name in ids]
        return _message(edits.edits_for(nodes, self._policy, self._present or frozenset()))

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Choose neighbours; see ``binder.sets.prefer``."""
        return sets.prefer(self._order, available, must_include, size)

    def pre_start(self, ids: Sequence[str]) -> None:
        """Do nothing: a node needs no preparation."""

    def close(self) -> None:
        """Hold nothing: nodes are looked at, not kept open."""

    def _still_fit(self, look: scanner.Look, name: str) -> Node:
        known = (self._tracked or {}).get(name)
        node = look.at(name)
        if known is None or node is None:
            reason: Reason | None = health.Reason.MISSING
        else:
            reason = self._judge(node, known.file_system)
        if node is None or reason is not None:
            raise UnhealthyDeviceError(f"device {name!r} is unhealthy: {reason}")
        return node

    def _judge(
        self, node: Node, file_system: FileSystem | None, probe: Callable[[Node], bool] | None = None
    ) -> Reason | None:
        return health.judge(node, self._verify, file_system, probe)

    def _probe(self, node: Node) -> bool:
        """Ask the driver behind a node for its version; what may not be opened can't be judged, and passes."""
        try:
            version = binderfs.binder_version(self._host.seen(self._host.resolve(node.path)))
        except NotPermittedError as error:
            if not self._told_of_probe:
                self._told_of_probe = True
                LOG.warning(
                    "nodes can't be probed; the plugin needs the right to open them, or --verify binder",
                    extra={"error": str(error)},
                )
            return True
        except (BinderfsError, OSError):
            return False
        return version == binderfs.PROTOCOL_VERSION

    def _warn_of(self, skipped: Mapping[str, str]) -> None:
        for name in sorted(skipped.keys() - self._skipped):
            LOG.warning("skipped a file that can't be a device: %s", skipped[name], extra={"file": ascii(name)})
        self._skipped = set(skipped)

    def _look_for_shared_paths(self) -> None:
        """Note which of the paths that all containers get are there; say once what is not."""
        wanted = {shared.host_path for shared in (*self._policy.shared_mounts, *self._policy.shared_devices)}
        wanted.discard(edits.OWN_BINDERFS)
        present = frozenset(path for path in wanted if self._host.exists(path))
        before = wanted if self._present is None else self._present
        for path in sorted(before - present):
            LOG.info("a shared path does not exist, and containers do without it", extra={"path": path})
        self._present = present


def _message(container: edits.Edits) -> pb.ContainerAllocateResponse:
    """Put what a container needs into the kubelet's words."""
    return pb.ContainerAllocateResponse(
        envs=container.environment,
        devices=[pb.DeviceSpec(**device._asdict()) for device in container.devices],
        mounts=[pb.Mount(**mount._asdict()) for mount in container.mounts],
    )
