"""The nodes of one resource as of the last look, and what is remembered of them.

Holds what ``scanner`` found and ``health`` judged from one look to the next. How nodes make devices is for ``sets``,
what a container gets with them for ``edits``.
"""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from typing import TYPE_CHECKING

from aosp_plugin.binder.discovery import health, scanner
from aosp_plugin.binder.discovery.names import merge_sorted, natural_sort
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Driver
from aosp_plugin.binder.errors import BinderfsError, DeviceDirectoryError, NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from aosp_plugin.binder.devices.sets import Named
    from aosp_plugin.binder.discovery.binder_device import BinderDevice, FileSystem
    from aosp_plugin.binder.discovery.health import Reason, TrackedDevice, Verify
    from aosp_plugin.binder.discovery.scanner import Scan
    from aosp_plugin.binder.driver.host import Host

LOG = logging.getLogger(__name__)


class DeviceStore:
    """The nodes of one resource, by name."""

    def __init__(
        self,
        host: Host,
        *,
        directory: str,
        prefix: str,
        named: Named | None,
        verify: Verify,
        missing_device_ttl: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take those of ``directory`` that ``named`` says, or else that begin with ``prefix``.

        ``missing_device_ttl`` is in seconds.
        """
        self._host = host
        self._directory = os.path.normpath(directory)
        self._prefix = prefix
        self._named = named
        self._verify = verify
        self._forget_after = missing_device_ttl
        self._clock = clock
        self._tracked: Mapping[str, TrackedDevice] | None = None
        self._skipped: set[str] = set()
        self._targets: frozenset[str] = frozenset({self._directory})
        self._links: dict[str, set[str]] = {}
        self._looked_in = ""
        self._driver = Driver()
        self._told_of_probe = False
        self._forget = False
        self.names: Sequence[str] = ()
        """In natural order; those that are missing too, until they are forgotten."""

    def directories(self) -> frozenset[str]:
        """Return where a change of files calls for a look, as this process sees them."""
        return frozenset(self._host.process_path(self._host.resolve(directory)) for directory in self._targets)

    def look(self, changed: Collection[str] | None = None) -> Collection[str] | None:
        """Look at the host again: at what stands behind these files, as this process sees them; None: at everything.

        A device directory that was never there is an error, since its name is most likely wrong; one that
        vanishes later has lost all its nodes. Returns the names of the nodes that were looked at; None: all.
        Raises DeviceDirectoryError and OSError.
        """
        driver = self._host.driver()
        names = self._behind(changed, driver) if changed is not None else None
        if names is None:
            self._look_at_all(driver)
        elif names:
            self._look_at(names)
        return names

    def _behind(self, changed: Collection[str], driver: Driver) -> set[str] | None:
        """Return the names of the nodes that a change of these files may concern; None: of all."""
        directory = self._host.process_path(self._host.resolve(self._directory))
        nested = self._named is not None and self._named.nested
        if self._tracked is None or self._forget or nested or driver != self._driver or directory != self._looked_in:
            return None
        files = [os.path.split(path) for path in changed]
        names, skipped = self._usable([name for parent, name in files if parent == directory])
        self._warn_of(skipped)
        return {*names, *(name for path in changed for name in self._links.get(path, ()))}

    def _usable(self, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
        if self._named is not None:
            return scanner.usable_of_sets(names, self._named)
        return scanner.usable_names(names, self._prefix)

    def _look_at_all(self, driver: Driver) -> None:
        try:
            scan = self._scan(driver)
        except (FileNotFoundError, NotADirectoryError) as error:
            if self._tracked is None:
                raise DeviceDirectoryError(f"the device directory {self._directory} can't be read: {error}") from error
            scan = scanner.Scan((), {}, frozenset({self._directory}))
        self._skipped &= scan.skipped.keys()
        self._warn_of(scan.skipped)
        nodes = (*scan.nodes, *self._overlooked(scan, driver))
        known = {} if self._forget else self._tracked or {}
        self._forget = False
        tracked = self._followed(known, nodes)
        in_order = [node.name for node in scan.nodes]
        names = in_order if len(tracked) == len(in_order) else natural_sort(list(tracked))
        self._driver = driver
        self._looked_in = self._host.process_path(self._host.resolve(self._directory))
        self._targets = scan.directories
        self._links = {self._host.process_path(target): {*names} for target, names in scan.links.items()}
        self.names = names
        self._tracked = tracked

    def _look_at(self, names: Collection[str]) -> None:
        """Look at these nodes alone. What is known of the others is shared with the last look."""
        look = scanner.Look(self._host, self._driver, self._directory)
        before = self._tracked or {}
        own = {name: before[name] for name in names if name in before}
        after = self._followed(own, look.at_all(names))
        tracked = {**before, **after}
        forgotten = own.keys() - after.keys()
        for name in forgotten:
            del tracked[name]
        left = [name for name in self.names if name not in forgotten] if forgotten else self.names
        new = after.keys() - before.keys()
        for target, through in look.links.items():
            self._links.setdefault(self._host.process_path(target), set()).update(through)
        self._targets |= look.targets
        self.names = merge_sorted(left, new) if new else left
        self._tracked = tracked

    def _followed(self, known: Mapping[str, TrackedDevice], nodes: Iterable[BinderDevice]) -> dict[str, TrackedDevice]:
        judgement = partial(self._judge, probe=self._probe)
        return health.follow(known, nodes, self._clock(), self._forget_after, judgement)

    def forget(self) -> None:
        """Have the next look take the nodes that are there for the right ones, whatever was there before."""
        self._forget = True

    def reason(self, name: str) -> Reason | None:
        """Say why a node can't be handed out, or None if it can; MISSING where it was never seen."""
        known = (self._tracked or {}).get(name)
        return known.reason if known is not None else health.Reason.MISSING

    def node(self, name: str) -> BinderDevice | None:
        """Return a node as the last look found it; None where none did."""
        known = (self._tracked or {}).get(name)
        return known.node if known is not None else None

    def rechecker(self) -> Callable[[str], tuple[BinderDevice | None, Reason | None]]:
        """Return what looks at one node once more, and says what is wrong with it now.

        Between the last look and this moment it may have become something else. What belongs to the driver is taken
        from the last look: a binderfs that was mounted since is none of those it knows, and its nodes are on another
        file system than before.
        """
        look = scanner.Look(self._host, self._driver, self._directory)

        def again(name: str) -> tuple[BinderDevice | None, Reason | None]:
            known = (self._tracked or {}).get(name)
            node = look.at(name)
            if known is None or node is None:
                return None, health.Reason.MISSING
            return node, self._judge(node, known.file_system)

        return again

    def _scan(self, driver: Driver) -> Scan:
        if self._named is not None:
            return scanner.scan_named(self._host, driver, self._directory, self._named)
        return scanner.scan(self._host, driver, self._directory, self._prefix)

    def _overlooked(self, scan: Scan, driver: Driver) -> Sequence[BinderDevice]:
        """Look at each known node that the listing lacks before it counts as missing.

        A binderfs is listed in several steps (fs/libfs.c ``dcache_readdir``): a node that is renewed between two of
        them may be in neither.
        """
        missing = (self._tracked or {}).keys() - {node.name for node in scan.nodes}
        return scanner.Look(self._host, driver, self._directory).at_all(missing) if missing else ()

    def _judge(
        self, node: BinderDevice, file_system: FileSystem | None, probe: Callable[[BinderDevice], bool] | None = None
    ) -> Reason | None:
        return health.judge(node, self._verify, file_system, probe)

    def _probe(self, node: BinderDevice) -> bool:
        """Ask the driver behind a node for its version; what may not be opened can't be judged, and passes."""
        try:
            version = binderfs.binder_version(self._host.process_path(self._host.resolve(node.path)))
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
        self._skipped |= skipped.keys()
