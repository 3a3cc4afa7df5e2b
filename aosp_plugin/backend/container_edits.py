"""What a container gets for its binder devices: device nodes, mounts, environment and CDI names; the CDI spec.

A binder device of a binderfs requires both a device node and a mount of its file, at the same container path. Measured
with runc and crun: a runtime creates a device node with mknod, and a copy of a binderfs device fails to open with
ENXIO, because binderfs makes no cdev and only its own inode leads to the driver (drivers/android/binderfs.c
``binderfs_binder_device_create``; fs/char_dev.c ``chrdev_open``). The bind mount provides that inode, but without the
device node the device cgroup rejects it with EPERM (include/linux/device_cgroup.h). With both, the runtime mounts
first, and accepts that the file exists when it calls mknod (runc, libcontainer/rootfs_linux.go ``createDeviceNode``).

The mount is read-only. The device can still be opened for reading and writing (fs/namei.c ``sb_permission`` checks
regular files, directories and links only), but root in the container cannot change its mode or owner, which would lock
out the users of the next tenant. Measured on Linux 6.1: both fail with EROFS.

A further container path (``/dev/binder``) is a mount alone, for all kinds: the cgroup allows the device already, and in
a pod with a user namespace a device node must have the host's path. mknod is not permitted there, and runc bind-mounts
the host's file of the same path instead (libcontainer/rootfs_linux.go ``bindMountDeviceNode``). So a device of a
binderfs outside /dev, where the plugin mounts phones, has its device node at the host's path, and ``/dev/<name>``
is a mount.

A phone that the plugin made has a binderfs of its own, which no other container uses. Its container gets
that directory, where clients look for their devices first, and no ``/dev/<name>``. The null device covers
``binder-control`` there, which the device cgroup denies as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from aosp_plugin.backend.parameters import Parameters
from aosp_plugin.backend.shared_paths import Selected, SharedFiles
from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.driver.binderfs import CONTROL_NAME
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.container_paths import CONTAINER_DIRECTORY
from aosp_plugin.config.keys import Resource
from aosp_plugin.config.values import OWN_BINDERFS, Isolation, filled, has_placeholder, normalised, shared_path
from aosp_plugin.framework import cdi
from aosp_plugin.framework.backend import CDI, ContainerEdits, DeviceList, DeviceNode, Mount
from aosp_plugin.framework.errors import InvalidRequestError

NULL_DEVICE = "/dev/null"


class AllocatedDevice(NamedTuple):
    """A device, and the binder devices that a container gets with it."""

    id: str
    members: Sequence[BinderDevice]
    others: Sequence[Selected] = ()
    """Its spread devices and its slices."""
    number: int = 0
    """The number of the device, which selects ``others``."""


class EditsBuilder:
    """Builds the container edits and the CDI spec of one resource."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._has_phones = resource.phones is not None
        mounts = [shared_path(text) for text in resource.shared_mounts]
        self._shared_mounts = [mount for mount in mounts if not has_placeholder(mount[0])]
        self._own_mounts = [(normalised(host), normalised(path)) for host, path in mounts if has_placeholder(host)]
        self._common_environment = {"PATH": resource.path_env} if resource.path_env else {}
        self.needs_spec = not CDI.isdisjoint(resource.device_list)
        """Whether containers refer to devices of a CDI spec."""
        self.by_cdi_only = self.needs_spec and DeviceList.VOLUME_MOUNTS not in resource.device_list
        """Whether containers get devices by the CDI spec alone."""

    def for_container(self, devices: Sequence[AllocatedDevice], shared: SharedFiles) -> ContainerEdits:
        """Return the edits for a container with these ``devices``, in the order in which it gets them.

        ``shared`` is what every container gets besides binder devices. Raises InvalidRequestError if one container
        cannot have all the devices.
        """
        self._require_together(devices, shared)
        edits = self._edits(devices, shared, self._resource.container_paths)
        edits = edits._replace(environment={**self._names(devices), **edits.environment})
        if not self.needs_spec:
            return edits
        remaining = self._mounts_without_cdi(devices, edits, shared)
        if self.by_cdi_only:
            edits = edits._replace(devices=[], mounts=remaining)
        resource_name = self._resource.resource_name
        names = [cdi.qualified_name(resource_name, device.id) for device in devices]
        if DeviceList.CDI_CRI in self._resource.device_list:
            edits = edits._replace(cdi_devices=names)
        if DeviceList.CDI_ANNOTATIONS in self._resource.device_list:
            edits = edits._replace(annotations=dict([cdi.annotation(resource_name, names)]))
        return edits

    def for_claim(
        self, devices: Sequence[AllocatedDevice], shared: SharedFiles, parameters: Parameters
    ) -> list[ContainerEdits]:
        """Return the edits of each of the ``devices`` of a request; a container with the request gets all of them.

        The first device also has the edits that belong to no single device. Raises InvalidRequestError.
        """
        self._require_together(devices, shared)
        paths = self._resource.container_paths if parameters.container_paths is None else parameters.container_paths
        edits, rest = [], [*paths]
        for device in devices:
            own_paths, rest = rest[: len(device.members)], rest[len(device.members) :]
            nodes = [*self._nodes_of(device.members), *self._selected([device])]
            mounts = [*self._mounts_of(device.members, own_paths), *self._own_mounts_of([device], shared)]
            edits.append(ContainerEdits(nodes, mounts))
        everything = self._edits(devices, shared, ())
        given = {item for own in edits for item in (*own.devices, *own.mounts)}
        first = ContainerEdits(
            [*edits[0].devices, *(node for node in everything.devices if node not in given)],
            [*edits[0].mounts, *(mount for mount in everything.mounts if mount not in given)],
            {**self._names(devices), **everything.environment, **parameters.environment},
        )
        return [first, *edits[1:]]

    def paths_without(self, devices: Sequence[AllocatedDevice], shared: SharedFiles) -> list[str]:
        """Return the container paths that are in use without ``container_paths``, each once."""
        edits = self._edits(devices, shared, ())
        paths = [node.container_path for node in edits.devices] + [mount.container_path for mount in edits.mounts]
        return list(dict.fromkeys(paths))

    def for_spec(self, device: AllocatedDevice, shared: SharedFiles) -> ContainerEdits:
        """Return the edits of one device in the CDI spec.

        If two devices of a container set the same variable or mount to the same path, the last device wins. So the
        spec has no list of names, and no container paths if each device is a single binder device.
        """
        paths = self._resource.container_paths if self._has_phones or self._resource.sets is not None else ()
        return self._edits([device], shared, paths)

    def _require_together(self, devices: Sequence[AllocatedDevice], shared: SharedFiles) -> None:
        """Raise InvalidRequestError if no container can have all of these devices."""
        ids = ", ".join(device.id for device in devices)
        if self._has_phones and len(devices) > 1:
            raise InvalidRequestError(f"a container can have one phone, not {len(devices)} ({ids}): request 1")
        nodes, mounts = self._selected(devices), self._own_mounts_of(devices, shared)
        paths: dict[str, str] = {}
        for host_path, path in [*(node[:2] for node in nodes), *(mount[:2] for mount in mounts)]:
            if paths.setdefault(path, host_path) != host_path:
                raise InvalidRequestError(
                    f"a container cannot have devices {ids}: {paths[path]} and {host_path} would both be {path} "
                    "(spread_devices, shared_mounts): request 1"
                )

    def _edits(
        self, devices: Sequence[AllocatedDevice], shared: SharedFiles, container_paths: Sequence[str]
    ) -> ContainerEdits:
        """Return the edits that do not depend on which other devices a container has."""
        members = list(dict.fromkeys(member for device in devices for member in device.members))
        nodes, mounts = self._nodes_of(members), self._mounts_of(members, container_paths)
        nodes += [DeviceNode(host_path, path) for host_path, path in shared.devices]
        nodes += self._selected(devices)
        mounts += self._shared_mounts_of(members, shared) + self._own_mounts_of(devices, shared)
        return ContainerEdits(nodes, mounts, self._common_environment)

    def _selected(self, devices: Sequence[AllocatedDevice]) -> list[DeviceNode]:
        """Return the nodes of the spread devices and slices of ``devices``, each once."""
        nodes = [
            DeviceNode(other.path, other.container_path or other.path) for device in devices for other in device.others
        ]
        return list(dict.fromkeys(nodes))

    def _nodes_of(self, members: Iterable[BinderDevice]) -> list[DeviceNode]:
        return [DeviceNode(member.path, device_node_path(member)) for member in members]

    def _mounts_of(self, members: Sequence[BinderDevice], container_paths: Sequence[str]) -> list[Mount]:
        own = [(member, path) for member in members for path in self._own_paths(member)]
        # A container with fewer binder devices than paths gets the first paths; further devices get no path.
        further = [each for each in zip(members, container_paths, strict=False) if each[1] != container_path(each[0])]
        return [Mount(member.path, path) for member, path in (*own, *further)]

    def _shared_mounts_of(self, members: Sequence[BinderDevice], shared: SharedFiles) -> list[Mount]:
        """Return the shared mounts. They are read-only, or root in a container could unlink all binder devices."""
        if self._resource.isolation is Isolation.STRICT:
            return []
        binderfs = next((member.directory for member in members if member.directory), "")
        mounts = []
        for host_path, path in self._shared_mounts:
            if host_path == OWN_BINDERFS and binderfs:
                mounts.append(Mount(binderfs, path))
                if self._has_phones:
                    mounts.append(Mount(NULL_DEVICE, f"{path}/{CONTROL_NAME}"))
            elif host_path in shared.mounts:
                mounts.append(Mount(host_path, path))
        return mounts

    def _own_mounts_of(self, devices: Sequence[AllocatedDevice], shared: SharedFiles) -> list[Mount]:
        """Return the mounts whose paths have an ID or number. A client can connect to a socket in a read-only mount."""
        if self._resource.isolation is Isolation.STRICT:
            return []
        mounts = [
            Mount(filled(host_path, device.id, device.number), filled(path, device.id, device.number))
            for device in devices
            for host_path, path in self._own_mounts
        ]
        return [mount for mount in mounts if mount.host_path in shared.mounts]

    def _own_paths(self, member: BinderDevice) -> Iterable[str]:
        """Return the container paths at which a binder device has to be mounted, besides the configured paths."""
        if member.kind is not Kind.BINDERFS:
            return ()
        path = device_node_path(member)
        return (path,) if self._has_phones else dict.fromkeys([path, container_path(member)])

    def _names(self, devices: Sequence[AllocatedDevice]) -> dict[str, str]:
        """Return the configured variables with the binder devices and spread devices of a container.

        The names of several devices are separated by commas.
        """
        values: dict[str, list[str]] = {}
        variable = self._resource.visible_devices_env
        if DeviceList.ENVVAR in self._resource.device_list and variable:
            names = [member.name for device in devices for member in device.members]
            # A container finds the binder devices of a phone by their names in the binderfs.
            values[variable] = [name.rpartition("/")[2] for name in names] if self._has_phones else names
        for other in [other for device in devices for other in device.others if other.variable]:
            values.setdefault(other.variable, []).append(other.container_path)
        return {name: ",".join(dict.fromkeys(parts)) for name, parts in values.items()}

    def _mounts_without_cdi(
        self, devices: Sequence[AllocatedDevice], edits: ContainerEdits, shared: SharedFiles
    ) -> list[Mount]:
        """Return the mounts that are in no device of the CDI spec. Raises InvalidRequestError if devices conflict."""
        by_cdi = [mount for device in devices for mount in self.for_spec(device, shared).mounts]
        for mount in by_cdi:
            if mount not in edits.mounts:
                ids = ", ".join(device.id for device in devices)
                raise InvalidRequestError(
                    f"CDI does not support devices {ids} in one container: more than one has a mount at "
                    f"{mount.container_path}"
                )
        return [mount for mount in edits.mounts if mount not in by_cdi]


class SpecWriter:
    """Writes the CDI spec of one resource. For the worker thread."""

    def __init__(self, host: Host, resource: Resource, edits: EditsBuilder, cdi_dir: str) -> None:
        """``cdi_dir`` is the host's directory of CDI specs. The host is not accessed."""
        self._host = host
        self._resource = resource
        self._edits = edits
        self._cdi_dir = cdi_dir
        self._spec_file: cdi.SpecFile | None = None
        self._described: tuple[object, bytes | None] = (None, None)
        self._written: list[AllocatedDevice] = []
        self.lacking: frozenset[str] = frozenset()
        """Binder devices that no container can get, because they are in the spec alone, which could not be written."""

    def write(self, devices: list[AllocatedDevice], shared: SharedFiles) -> None:
        """Write the spec with these devices, those that pods may use. Raises CdiError, HostError and OSError."""
        try:
            content = self._content(devices, shared)
            members = [member for device in devices for member in device.members]
            numbers = [member.identity.st_rdev for member in members if member.identity is not None]
            self._file().write(content, numbers)
        except BaseException:
            if self._edits.by_cdi_only:
                self.lacking = _names(devices) - _names(self._written)
            raise
        self._written = devices
        self.lacking = frozenset()

    def check(self, devices: list[AllocatedDevice], shared: SharedFiles) -> None:
        """Check without effect that the spec could be written. Raises CdiError, HostError and OSError."""
        self._file().check(self._content(devices, shared) or b"")

    def rewrite(self) -> None:
        """Write the same spec again after a device node was recreated. Raises CdiError, HostError and OSError."""
        self._file().rewrite()

    def _content(self, devices: list[AllocatedDevice], shared: SharedFiles) -> bytes | None:
        """Return the spec of these devices, or None if there are none. 10,000 devices take a third of a second."""
        key = (devices, shared)
        if key != self._described[0]:
            edits = [(device.id, self._edits.for_spec(device, shared)) for device in devices]
            described = [cdi.CdiDevice(device_id, resolved(own, self._host.resolve)) for device_id, own in edits]
            content = cdi.encode(cdi.spec_of(self._resource.resource_name, described)) if described else None
            self._described = (key, content)
        return self._described[1]

    def _file(self) -> cdi.SpecFile:
        if self._spec_file is None:
            directory = self._host.process_path(self._host.resolve(self._cdi_dir))
            self._spec_file = cdi.SpecFile(directory, self._resource.resource_name)
        return self._spec_file


def resolved(edits: ContainerEdits, resolve: Callable[[str], str]) -> ContainerEdits:
    """Return the edits with the links in host paths followed by ``resolve``, as a CDI spec requires. Raises OSError."""
    paths = [node.host_path for node in edits.devices] + [mount.host_path for mount in edits.mounts]
    real = {path: resolve(path) for path in dict.fromkeys(paths)}
    return edits._replace(
        devices=[node._replace(host_path=real[node.host_path]) for node in edits.devices],
        mounts=[mount._replace(host_path=real[mount.host_path]) for mount in edits.mounts],
    )


def container_path(device: BinderDevice) -> str:
    """Return the path of a binder device in a container."""
    return f"{CONTAINER_DIRECTORY}/{device.name}"


def device_node_path(device: BinderDevice) -> str:
    """Return the container path of the device node of a binder device."""
    outside_dev = not device.path.startswith(f"{CONTAINER_DIRECTORY}/")
    return device.path if device.kind is Kind.BINDERFS and outside_dev else container_path(device)


def _names(devices: Iterable[AllocatedDevice]) -> frozenset[str]:
    return frozenset(member.name for device in devices for member in device.members)
