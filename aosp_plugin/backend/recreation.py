"""Which nodes could be made anew before a container started, and which still have to be."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.discovery.names import natural_key
from aosp_plugin.binder.provision import recreate
from aosp_plugin.errors import HostError

if TYPE_CHECKING:
    from aosp_plugin.binder.discovery.store import DeviceStore
    from aosp_plugin.binder.driver.host import Host

LOG = logging.getLogger(__name__)

MODE = 0o666
"""Of a node that is made anew: Android's processes are of many users, and the last tenant may have changed it."""


class Recreator:
    """Renews nodes of one resource, and remembers those that failed."""

    def __init__(self, host: Host, known: DeviceStore) -> None:
        self._host = host
        self._known = known
        self._failed: set[str] = set()
        self._swept: set[str] = set()

    def renew(self, name: str) -> None:
        """Put a new node in the place of this one. Raises HostError; it is remembered then."""
        self._failed.add(name)
        node = self._known.node(name)
        if node is None:
            raise HostError(f"node {name!r} is gone")
        recreate.recreate_device(node, self._host, mode=MODE)
        self._failed.discard(name)

    def is_due(self, name: str) -> bool:
        """Say whether a node has to be renewed before anybody may have it, or never can be."""
        node = self._known.node(name)
        return name in self._failed or (node is not None and node.kind not in {Kind.BINDERFS, Kind.ABSENT})

    def catch_up(self) -> bool:
        """Try once more with the nodes that failed, which no container has, and remove what a predecessor left.

        Says whether there were such nodes.
        """
        self._sweep()
        tried = bool(self._failed)
        for name in sorted(self._failed, key=natural_key):
            try:
                self.renew(name)
            except HostError as error:
                LOG.debug("still not renewed", extra={"device": name, "error": str(error)})
        return tried

    def _sweep(self) -> None:
        """Remove the temporary nodes of renewals that were killed, once from each binderfs."""
        nodes = map(self._known.node, self._known.names)
        directories = {node.directory for node in nodes if node is not None and node.directory}
        for directory in directories - self._swept:
            self._swept.add(directory)
            try:
                swept = recreate.sweep(directory, self._host)
            except HostError as error:
                LOG.warning("temporary nodes can't be removed", extra={"dir": directory, "error": str(error)})
            else:
                if swept:
                    LOG.info("removed temporary nodes of a predecessor", extra={"dir": directory, "nodes": swept})
