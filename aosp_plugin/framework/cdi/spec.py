"""Devices that container runtimes know by name: the CDI spec of a resource, and the names in it.

CDI is the Container Device Interface (cncf-tags/container-device-interface, SPEC.md, and its Go library ``pkg/cdi``,
with which containerd, CRI-O, Podman and Docker read specs). A file in a directory that they watch says what a container
gets with each device of a kind, and who starts one says the name: ``podman run --device example.com/gpu=gpu0``.

The file has no device numbers: a runtime looks at the node itself when a container asks for it (``fillMissingInfo`` in
pkg/cdi/container-edits_unix.go), and finds one that was made anew.

Functions of their inputs; the file is ``cdi_file``'s matter. Nothing here makes messages for a kubelet.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DIRECTORY = "/var/run/cdi"
"""Where runtimes look for specs that programs write; it wins over /etc/cdi (pkg/cdi/spec-dirs.go)."""

_LONGEST_ANNOTATION = 63  # characters after cdi.k8s.io/
_KIND_PART = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_ESCAPED = "x:"


class DeviceNode(NamedTuple):
    """A device node that the runtime makes in the container, and allows in its device cgroup."""

    host_path: str
    """As the runtime sees it, and no link: ``fillMissingInfo`` follows none."""
    container_path: str
    permissions: str
    """Any of r, w and m, and at least one: the runtime takes an empty text for all three."""


class Mount(NamedTuple):
    """A bind mount."""

    host_path: str
    container_path: str
    read_only: bool


class CdiDevice(NamedTuple):
    """What a container gets with one device: something at least, or no runtime takes the spec (pkg/cdi/device.go)."""

    id: str
    device_nodes: Sequence[DeviceNode]
    mounts: Sequence[Mount]
    environment: Mapping[str, str]
    """Not for what lists the devices of a container: of two that set the same variable, the last one wins."""


def kind_problem(resource_name: str) -> str | None:
    """Say why the name of a resource can't be the kind of a spec; None if it can.

    It is a vendor and a class (pkg/parser/parser.go, ``ValidateVendorName``, ``ValidateClassName``). One letter would
    do for each, but crashes a runtime with the library before 1.1.1 (issue 320 there). No resource's name is too long.
    """
    vendor, _, class_ = resource_name.partition("/")
    for what, text in (("vendor", vendor), ("class", class_)):
        if _KIND_PART.fullmatch(text) is None:
            return f"its {what} {text!r} is not a letter, any letters, digits, '-', '_' and '.', and a letter or digit"
    return None


def device_name(device_id: str) -> str:
    """Return the name in the spec of the device ``device_id``: no two IDs have the same.

    It is the ID itself where that can be a name (pkg/parser/parser.go, ``ValidateDeviceName``). Elsewhere it is x:, and
    the ID with every byte but letters and digits as a colon and two hexadecimal digits: a@1 becomes x:a:401.
    """
    if _DEVICE_NAME.fullmatch(device_id) and not device_id.startswith(_ESCAPED):
        return device_id
    escaped = re.sub(rb"[^A-Za-z0-9]", lambda found: b":%02x" % found[0][0], device_id.encode())
    return _ESCAPED + escaped.decode()


def qualified_name(resource_name: str, device_id: str) -> str:
    """Return the name by which a runtime is asked for a device, for example example.com/gpu=gpu0."""
    return f"{resource_name}={device_name(device_id)}"


def annotation(resource_name: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the key and the value of the annotation that asks for the qualified ``names`` for one container.

    The key is <vendor>.<class>_<hash>, the same for the same devices only (pkg/cdi/annotations.go).
    """
    value = ",".join(names)
    unique = hashlib.sha256(f"{resource_name} {value}".encode()).hexdigest()[:16]
    plugin = resource_name.replace("/", ".")[: _LONGEST_ANNOTATION - len(unique) - 1]
    return f"cdi.k8s.io/{plugin}_{unique}", value


def spec_of(resource_name: str, devices: Sequence[CdiDevice]) -> dict[str, Any]:
    """Return the spec of a resource: of at least one device, and no two with the same ID.

    The version is the lowest that has what is in use, as a library takes none that is newer than itself: ``hostPath``
    of a node came with 0.5.0, a class with a dot with 0.6.0 (SPEC.md, Released versions).

    What all devices have in common stands, and is applied, once for all of them; but no device is left without edits
    of its own, which the library refuses.
    """
    edits = {device_name(device.id): _edits(device) for device in devices}
    common = {
        key: [item for item in items if all(item in others.get(key, ()) for others in edits.values())]
        for key, items in next(iter(edits.values())).items()
    }
    own = {name: _without(one, common) for name, one in edits.items()}
    if not all(own.values()):
        common, own = {}, edits
    return {
        "cdiVersion": "0.6.0" if "." in resource_name.partition("/")[2] else "0.5.0",
        "kind": resource_name,
        "containerEdits": _without(common, {}),
        "devices": [{"name": name, "containerEdits": own[name]} for name in sorted(own)],
    }


def encode(spec: Mapping[str, Any]) -> bytes:
    """Return the text of a spec's file, which is read as YAML: not in ASCII, since YAML knows no pairs of escapes."""
    return msgspec.json.encode(spec)


def _edits(device: CdiDevice) -> dict[str, list[Any]]:
    """Put what a container gets into CDI's words.

    The options of a mount are those that a runtime gives to a mount of the kubelet's (containerd,
    pkg/cri/opts/spec_linux_opts.go, ``WithMounts``). Never nodev: a device node would then fail to open with EACCES.
    """
    nodes = [
        {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions}
        for node in device.device_nodes
    ]
    mounts = [
        {
            "hostPath": mount.host_path,
            "containerPath": mount.container_path,
            "type": "bind",
            "options": ["rbind", "rprivate", "ro" if mount.read_only else "rw"],
        }
        for mount in device.mounts
    ]
    env = [f"{name}={value}" for name, value in sorted(device.environment.items())]
    return _without({"deviceNodes": nodes, "mounts": mounts, "env": env}, {})


def _without(edits: dict[str, list[Any]], others: dict[str, list[Any]]) -> dict[str, list[Any]]:
    left = {key: [item for item in items if item not in others.get(key, ())] for key, items in edits.items()}
    return {key: items for key, items in left.items() if items}
