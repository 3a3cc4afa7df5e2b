"""The containers of a simulated node: what each has of the host, and whose a device is.

A pod is the tenant of its devices from its admission to its end, whether its container runs or not.
"""

import contextlib
import functools
import json
import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.binder_driver import MAJOR
from tests.simulation.files import Files, FileSystem, Inode

if TYPE_CHECKING:
    from collections.abc import Callable

CDI_DIRECTORIES = ("/var/run/cdi", "/etc/cdi")
"""In the order in which a runtime prefers them (pkg/cdi/spec-dirs.go)."""
SPREAD_DIRECTORY = "/dev/dri/"
"""Where the devices are that several tenants have."""


_IN_PHONE = re.compile(r"/phone\d+/[a-z]+$")


@dataclass
class Tenant:
    """A pod with one container that has devices."""

    name: str
    held: list[Inode] = field(default_factory=list)
    """What the running container has; empty if it does not run."""
    places: frozenset[str] = frozenset()
    """The paths on the host that it has alone: phones and single devices, links followed."""
    shares: bool = False
    """Whether others may have the same: it has a replica."""
    may_replace: bool = False
    """Whether the plugin may replace what it has now: its container starts, or is about to be started again."""


class Containers:
    """The tenants of a node."""

    def __init__(self, files: Files, violated: "Callable[[str], None]") -> None:
        self._files, self._violated = files, violated
        self.tenants: dict[str, Tenant] = {}
        self.holders: dict[str, Tenant] = {}
        """A tenant of each path that has any."""

    def occupy(self, tenant: Tenant, paths: Iterable[str]) -> None:
        """Let a pod have the files at these paths: no other one has them."""
        tenant.places = frozenset(map(self._place, (path for path in paths if not path.startswith(SPREAD_DIRECTORY))))
        self.tenants[tenant.name] = tenant
        self._note()
        for other in self.tenants.values():
            common = tenant.places & other.places
            if other is not tenant and common and not (tenant.shares and other.shares):
                self._violated(f"{tenant.name} gets {min(common)}: {other.name} has it")

    def release(self, tenant: Tenant) -> None:
        """End a pod, which has no device any more."""
        self.end(tenant)
        self.tenants.pop(tenant.name, None)
        tenant.places = frozenset()
        self._note()

    def _note(self) -> None:
        self.holders = {place: tenant for tenant in self.tenants.values() for place in tenant.places}

    def start(self, tenant: Tenant, paths: Iterable[str], *, fresh: bool) -> None:
        """Start the container of a pod with the files at these paths. Raises OSError.

        ``fresh``: phones have nothing of another tenant.
        """
        found = [self._files.lookup(path) for path in paths]
        for path, inode in zip(paths, found, strict=True):
            if path.startswith(SPREAD_DIRECTORY):
                continue
            if inode.mode & 0o666 != 0o666:
                self._violated(f"{tenant.name} got a device that Android's users cannot open")
            others = inode.users - {tenant.name}
            if others and not tenant.shares:
                self._violated(f"{tenant.name} got a device that {min(others)} has")
            if fresh and _IN_PHONE.search(path) and inode.first_user not in {"", tenant.name}:
                self._violated(f"{tenant.name} got a device that {inode.first_user} had")
            inode.users.add(tenant.name)
            inode.first_user = inode.first_user or tenant.name
        tenant.held = found

    def end(self, tenant: Tenant) -> None:
        """End the container of a pod."""
        for inode in tenant.held:
            inode.users.discard(tenant.name)
        tenant.held = []

    def removed(self, inode: Inode | None) -> None:
        """Check that a file which a plugin has removed or replaced is of no running container."""
        for name in sorted(inode.users) if inode is not None else ():
            if name in self.tenants and not self.tenants[name].may_replace:
                self._violated(f"the plugin replaces or removes a device of the running container {name}")

    def unmounted(self, path: str, system: FileSystem) -> None:
        """Check that no pod has what a plugin has unmounted. A running container that lost its own has none of it."""
        for tenant in self.tenants.values():
            has_other = tenant.held and all(inode.system is not system for inode in tenant.held)
            if path in tenant.places and not (tenant.may_replace or has_other):
                self._violated(f"the plugin unmounts {path}: {tenant.name} has it")

    def is_there(self, paths: Iterable[str]) -> bool:
        """Return whether there is a device at each of these paths, in a binderfs if that is where it belongs."""
        try:
            found = [self._files.lookup(path) for path in paths]
        except OSError:
            return False
        return all(inode.rdev and (inode.system.kind == "binder" or os.major(inode.rdev) != MAJOR) for inode in found)

    def exist(self, places: Iterable[str]) -> bool:
        """Return whether what a tenant has is there."""
        return all(self._files.mounted(place) or self.is_there([place]) for place in places)

    def by_cdi(self, name: str) -> list[str]:
        """Return the device nodes of a qualified CDI name. Raises KeyError, as a runtime does."""
        for directory in CDI_DIRECTORIES:
            found = []
            with contextlib.suppress(FileNotFoundError):
                for file, inode in self._files.lookup(directory).entries.items():
                    if file.endswith(".json") and name in (nodes := _device_nodes(inode.data)):
                        found.append(nodes[name])
            if len(found) == 1:  # two are a conflict (pkg/cdi/cache.go)
                return found[0]
        raise KeyError(f"unresolvable CDI device {name}")

    def places_by_cdi(self, names: Iterable[str]) -> set[str]:
        """Return the places of what these CDI names stand for, as far as they are resolvable."""
        places = set[str]()
        for name in names:
            with contextlib.suppress(KeyError):
                places |= {*map(self._place, self.by_cdi(name))}
        return places

    def _place(self, path: str) -> str:
        real = self._files.real_path(path)
        directory = posixpath.dirname(real)
        return directory if _IN_PHONE.search(real) else real


@functools.lru_cache(maxsize=256)
def _device_nodes(data: bytes) -> dict[str, list[str]]:
    """Return the device nodes of the qualified names in a CDI spec; none if it is damaged."""
    try:
        spec = json.loads(data)
    except ValueError:
        return {}

    def paths(edits: dict[str, Any]) -> list[str]:
        return [node.get("hostPath", node["path"]) for node in edits.get("deviceNodes", ())]

    common = paths(spec.get("containerEdits", {}))
    return {
        f"{spec['kind']}={each['name']}": [*common, *paths(each.get("containerEdits", {}))] for each in spec["devices"]
    }
