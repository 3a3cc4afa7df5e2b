"""What a machine shows from outside: its containers and their devices, the kubelet's allocations, sockets and mounts.

Everything is read from the machine's file tree and from the kubelet's sockets, so that it is available while the API
server, containerd or the network is not, and does not depend on what the plugin reports.
"""

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from aosp_plugin.framework.api import podresources_pb2 as pb
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.plugin import PHONE, SIZE
from tests.e2e.kubelet.pods import PREFIX
from tests.e2e.kubelet.standalone import PLUGINS, POD_RESOURCES, ask, devices_of

_TASKS: Final = "runtime/state/io.containerd.runtime.v2.task/k8s.io"
_ANNOTATION: Final = "io.kubernetes.cri."
CDI: Final = ("run/cdi", "etc/cdi")
_NUMBER: Final = re.compile(re.escape(PREFIX) + r"(\d+)")


class Container(NamedTuple):
    """A container whose process runs, or a pod's sandbox."""

    id: str
    kind: str
    """container or sandbox."""
    namespace: str
    pod: str
    uid: str
    """The pod's UID; empty for a container, whose sandbox has it."""
    name: str
    process: Path
    """The process's directory in the machine's /proc."""

    @property
    def bound(self) -> dict[str, str]:
        """The binder device that is mounted at each path of the container."""
        lines = [line.split() for line in (self.process / "mountinfo").read_text().splitlines()]
        # The kernel marks a device that was deleted while it is mounted.
        return {
            fields[4]: fields[3][1:].removesuffix("//deleted") for fields in lines if fields[3].startswith(f"/{PREFIX}")
        }

    @property
    def nodes(self) -> set[str]:
        """The names of the binder devices in the container's /dev."""
        return {name for name in os.listdir(self.process / "root/dev") if name.startswith(PREFIX)}


class Host(NamedTuple):
    """One machine at one moment."""

    containers: list[Container]
    sets: set[str]
    """The IDs of the device sets of which all binder devices exist."""
    partial: set[str]
    """The IDs of the device sets of which some binder devices exist."""
    allocatable: set[str] | None
    """The kubelet's healthy devices; None if it does not answer."""
    allocated: dict[tuple[str, str], set[str]] | None
    """The devices of each pod (namespace, name) according to the kubelet; None if it does not answer."""
    sockets: list[str]
    """The names of the plugin's sockets in the kubelet's directory."""
    cdi: list[str]
    """The files in the directories of CDI specs."""
    mounts: list[str]
    """The mount points."""


def observe(machine: Machine) -> Host:
    """Return the state of a machine that runs. Raises OSError if something ends meanwhile."""
    whole, partial = _sets(machine.root / "dev")
    allocatable = allocated = None
    with contextlib.suppress(grpc.RpcError):
        allocatable, allocated = healthy(machine), _allocated(machine)
    return Host(
        containers=list(containers(machine)),
        sets=whole,
        partial=partial,
        allocatable=allocatable,
        allocated=allocated,
        sockets=sorted(path.name for path in Path(f"{machine.root}{PLUGINS}").glob("aosp-*.sock")),
        cdi=sorted(str(path.relative_to(machine.root)) for name in CDI for path in (machine.root / name).glob("*")),
        mounts=[line.split()[4] for line in (machine.root / "proc/1/mountinfo").read_text().splitlines()],
    )


def containers(machine: Machine) -> Iterator[Container]:
    """Yield the containers and sandboxes of a machine whose processes run, from containerd's state directory."""
    for directory in (machine.directory / _TASKS).glob("*"):
        try:
            notes = json.loads((directory / "config.json").read_text()).get("annotations", {})
            process = machine.root / "proc" / (directory / "init.pid").read_text()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError, ValueError):  # it is being created, or has ended
            continue
        if state not in "ZX":
            yield Container(
                id=directory.name,
                kind=notes.get(f"{_ANNOTATION}container-type", ""),
                namespace=notes.get(f"{_ANNOTATION}sandbox-namespace", ""),
                pod=notes.get(f"{_ANNOTATION}sandbox-name", ""),
                uid=notes.get(f"{_ANNOTATION}sandbox-uid", ""),
                name=notes.get(f"{_ANNOTATION}container-name", ""),
                process=process,
            )


def holders(machine: Machine) -> list[tuple[str, frozenset[str]]]:
    """Return pod and devices of each container of a machine that has binder devices, as the kernel shows them."""
    found = []
    for container in containers(machine):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if container.kind == "container" and (devices := container.bound):
                found.append((container.pod, frozenset(devices.values())))
    return found


def conflicts(machine: Machine) -> list[tuple[str, str, str]]:
    """Return each device that the running containers of two pods have, with the names of both."""
    owners: dict[str, str] = {}
    found = []
    for pod, devices in holders(machine):
        taken = {device: owners.setdefault(device, pod) for device in sorted(devices)}
        found += [(device, owner, pod) for device, owner in taken.items() if owner != pod]
    return found


def members(device_id: str) -> set[str]:
    """Return the binder devices of a device set."""
    first = int(device_id.removeprefix(PREFIX))
    return {f"{PREFIX}{number}" for number in range(first, first + SIZE)}


def _sets(devices: Path) -> tuple[set[str], set[str]]:
    """Return the IDs of the whole and of the partial device sets in a directory."""
    found = set()
    for entry in os.scandir(devices):
        match = _NUMBER.fullmatch(entry.name)
        if match and stat.S_ISCHR(entry.stat(follow_symlinks=False).st_mode):
            found.add(entry.name)
    ids = {f"{PREFIX}{int(name.removeprefix(PREFIX)) // SIZE * SIZE}" for name in found}
    whole = {device_id for device_id in ids if members(device_id) <= found}
    return whole, ids - whole


def healthy(machine: Machine) -> set[str]:
    """Return the healthy devices that a machine's kubelet knows, allocated or not, without the delay of its reports."""
    answer = ask(str(machine.root) + POD_RESOURCES, "GetAllocatableResources", pb.AllocatableResourcesRequest())
    return devices_of(answer, PHONE)


def given(machine: Machine, pod: dict[str, Any]) -> set[str]:
    """Return the phones that a pod has according to the kubelet of its machine."""
    return _allocated(machine).get((pod["metadata"]["namespace"], pod["metadata"]["name"]), set())


def _allocated(machine: Machine) -> dict[tuple[str, str], set[str]]:
    """Return the devices of each pod that has some."""
    allocated: dict[tuple[str, str], set[str]] = {}
    for pod in ask(str(machine.root) + POD_RESOURCES, "List", pb.ListPodResourcesRequest()).pod_resources:
        for container in pod.containers:
            if devices := devices_of(container, PHONE):
                allocated.setdefault((pod.namespace, pod.name), set()).update(devices)
    return allocated
