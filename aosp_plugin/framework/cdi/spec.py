"""The CDI spec of a resource, and the CDI names of its devices.

CDI is the Container Device Interface (cncf-tags/container-device-interface, SPEC.md, and its Go library ``pkg/cdi``,
with which containerd, CRI-O, Podman and Docker read specs). A spec is a file in a directory that runtimes watch. It
defines what a container gets with each device of a kind; a container requests a device by name, as in
``podman run --device example.com/gpu=gpu0``.

The spec has no device numbers: the runtime reads them from the device node when a container requests the device
(``fillMissingInfo`` in pkg/cdi/container-edits_unix.go), and so also finds a node that was recreated.

All functions here are pure; ``spec_file`` writes the file.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from aosp_plugin.framework.devices import ContainerEdits

DIRECTORY = "/var/run/cdi"
"""Directory for generated specs; it takes precedence over /etc/cdi (pkg/cdi/spec-dirs.go)."""

_MAX_ANNOTATION_LENGTH = 63  # characters after cdi.k8s.io/
_KIND_PART = "[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]"
_DEVICE_NAME = "[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
_ESCAPED = "x:"


class CdiDevice(NamedTuple):
    """A device of a spec."""

    id: str
    """The device ID; ``device_name`` turns it into a CDI name."""
    edits: ContainerEdits
    """What a container gets: at least one device node, mount or variable, or no runtime accepts the spec
    (pkg/cdi/device.go). ``host_path`` of a device node must not be a symbolic link: ``fillMissingInfo`` does not follow
    links. ``permissions`` must not be empty: the runtime would grant all. If two devices of a container set the same
    environment variable, the last one wins."""


def kind_problem(resource_name: str) -> str | None:
    """Return why a resource name cannot be the kind of a spec; None if it can.

    A kind is a vendor and a class (pkg/parser/parser.go, ``ValidateVendorName``, ``ValidateClassName``). The parser
    accepts single letters, but they crash a runtime with the library before 1.1.1 (issue 320 there), so each part needs
    two characters. No resource name is too long for a kind.
    """
    vendor, _, class_ = resource_name.partition("/")
    for part, text in (("vendor", vendor), ("class", class_)):
        if re.fullmatch(_KIND_PART, text) is None:
            return (
                f"its {part} {text!r} must have at least two characters, start with a letter, end with a letter or "
                "digit, and contain only letters, digits, '-', '_' and '.'"
            )
    return None


def device_name(device_id: str) -> str:
    """Return the CDI name of a device; different IDs have different names.

    It is the ID itself if that is a valid name (pkg/parser/parser.go, ``ValidateDeviceName``). Otherwise it is x:,
    followed by the ID with every byte except letters and digits as a colon and two hexadecimal digits: a@1 becomes
    x:a:401.
    """
    if re.fullmatch(_DEVICE_NAME, device_id) and not device_id.startswith(_ESCAPED):
        return device_id
    escaped = re.sub(rb"[^A-Za-z0-9]", lambda match: b":%02x" % match[0][0], device_id.encode())
    return _ESCAPED + escaped.decode()


def qualified_name(resource_name: str, device_id: str) -> str:
    """Return the qualified CDI name of a device, such as example.com/gpu=gpu0."""
    return f"{resource_name}={device_name(device_id)}"


def annotation(resource_name: str, names: Sequence[str]) -> tuple[str, str]:
    """Return key and value of the annotation that requests the qualified ``names`` for one container.

    The key is <vendor>.<class>_<hash>; different devices have different keys (pkg/cdi/annotations.go).
    """
    value = ",".join(names)
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which only some CDI specs require

    unique = hashlib.sha256(f"{resource_name} {value}".encode()).hexdigest()[:16]
    plugin = resource_name.replace("/", ".")[: _MAX_ANNOTATION_LENGTH - len(unique) - 1]
    return f"cdi.k8s.io/{plugin}_{unique}", value


def spec_of(
    resource_name: str, devices: Sequence[CdiDevice], annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the spec of a resource with at least one device, and with no two devices of the same ID.

    ``annotations`` are those of the spec: keys as in Kubernetes, and at most 256 KiB (pkg/cdi/spec.go).

    The version is the lowest one that has all the features used, because a library rejects specs newer than itself:
    ``hostPath`` of a device node came with 0.5.0, a class with a dot and annotations with 0.6.0 (SPEC.md, Released
    versions).

    Edits that all devices have in common are written once for the whole spec. No device is left without edits of its
    own, which the library rejects.
    """
    edits = {device_name(device.id): _edits(device.edits) for device in devices}
    common = {
        key: [item for item in items if all(item in device_edits.get(key, ()) for device_edits in edits.values())]
        for key, items in next(iter(edits.values())).items()
    }
    own = {name: _without(device_edits, common) for name, device_edits in edits.items()}
    if not all(own.values()):
        common, own = {}, edits
    newer = annotations or "." in resource_name.partition("/")[2]
    return {
        "cdiVersion": "0.6.0" if newer else "0.5.0",
        "kind": resource_name,
        **({"annotations": dict(annotations)} if annotations else {}),
        "containerEdits": _without(common, {}),
        "devices": [{"name": name, "containerEdits": own[name]} for name in sorted(own)],
    }


def encode(spec: Mapping[str, Any]) -> bytes:
    """Return the content of a spec file.

    It is JSON that is not limited to ASCII: the file is read as YAML, which does not combine escaped surrogate pairs.
    """
    return msgspec.json.encode(spec)


def _edits(edits: ContainerEdits) -> dict[str, list[Any]]:
    """Return container edits in the form of a spec.

    The options of a mount are those that a runtime applies to a mount from the kubelet (containerd,
    pkg/cri/opts/spec_linux_opts.go, ``WithMounts``), never nodev: opening a device node would then fail with EACCES.
    """
    nodes = [
        {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions}
        for node in edits.devices
    ]
    mounts = [
        {
            "hostPath": mount.host_path,
            "containerPath": mount.container_path,
            "type": "bind",
            "options": ["rbind", "rprivate", "ro" if mount.read_only else "rw"],
        }
        for mount in edits.mounts
    ]
    env = [f"{name}={value}" for name, value in sorted(edits.environment.items())]
    return _without({"deviceNodes": nodes, "mounts": mounts, "env": env}, {})


def _without(edits: dict[str, list[Any]], common: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the edits that are not in ``common``, without empty lists."""
    own = {key: [item for item in items if item not in common.get(key, ())] for key, items in edits.items()}
    return {key: items for key, items in own.items() if items}
