"""CDI: the spec of a resource, the names of its devices in it, and its file.

CDI is the Container Device Interface (cncf-tags/container-device-interface, SPEC.md, and its Go library ``pkg/cdi``,
with which containerd, CRI-O, Podman and Docker read specs). A spec is a file in a directory that runtimes watch. It
defines what a container gets with each device of a kind; a container requests a device by name, as in
``podman run --device example.com/gpu=gpu0``.

The spec has no device numbers: the runtime reads them from the device node when a container requests the device
(``fillMissingInfo`` in pkg/cdi/container-edits_unix.go), and so also finds a node that was recreated.

All functions are pure. ``SpecFile`` writes the file atomically and leaves it in place when the plugin ends. A container
that restarts while no plugin runs requires it, and it stays right: it names paths, not device numbers. If its directory
survives a reboot, which /run does not, a container that starts before the plugin gets the device that has the path now,
or does not start because there is none. The first host update of a plugin replaces the file.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from aosp_plugin.framework import atomic_file
from aosp_plugin.framework.backend import ContainerEdits
from aosp_plugin.framework.errors import CdiError

DIRECTORY = "/var/run/cdi"
"""Directory for generated specs; it takes precedence over /etc/cdi (pkg/cdi/spec-dirs.go)."""

DIRECTORIES = ("/etc/cdi", DIRECTORY)
"""The directories that runtimes read by default."""

_MAX_ANNOTATION_LENGTH = 63  # characters after cdi.k8s.io/
_KIND_PART = "[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]"
_DEVICE_NAME = "[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
_ESCAPED = "x:"


class CdiDevice(NamedTuple):
    """A device of a spec."""

    id: str
    """The device ID; ``cdi_name`` turns it into a CDI name."""
    edits: ContainerEdits
    """The edits of a container: at least one device node, mount or variable, or no runtime accepts the spec
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


def cdi_name(device_id: str) -> str:
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
    return f"{resource_name}={cdi_name(device_id)}"


def annotation(resource_name: str, names: Sequence[str]) -> tuple[str, str]:
    """Return key and value of the annotation that requests the qualified ``names`` for one container.

    The key is <vendor>.<class>_<hash>; different devices have different keys (pkg/cdi/annotations.go).
    """
    value = ",".join(names)

    unique = hashlib.sha256(f"{resource_name} {value}".encode()).hexdigest()[:16]
    plugin = resource_name.replace("/", ".")[: _MAX_ANNOTATION_LENGTH - len(unique) - 1]
    return f"cdi.k8s.io/{plugin}_{unique}", value


def spec_of(resource_name: str, devices: Sequence[CdiDevice]) -> dict[str, Any]:
    """Return the spec of a resource with at least one device, and with no two devices of the same ID.

    The version is the lowest one that has all the features used, because a library rejects specs newer than itself:
    ``hostPath`` of a device node came with 0.5.0, a class with a dot with 0.6.0 (SPEC.md, Released versions).

    Edits that all devices have in common are written once for the whole spec. No device is left without edits of its
    own, which the library rejects.
    """
    edits = {cdi_name(device.id): _edits(device.edits) for device in devices}
    common = {
        key: [item for item in items if all(item in device_edits.get(key, ()) for device_edits in edits.values())]
        for key, items in next(iter(edits.values())).items()
    }
    own = {name: _without(device_edits, common) for name, device_edits in edits.items()}
    if not all(own.values()):
        common, own = {}, edits
    return {
        "cdiVersion": "0.6.0" if "." in resource_name.partition("/")[2] else "0.5.0",
        "kind": resource_name,
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


def spec_path(directory: str, resource_name: str) -> str:
    """Return the path of the spec of a resource in the directory of specs."""
    name = resource_name.replace("/", "_")  # with the library's "-", a-b/c and a/b-c share a file
    return os.path.join(directory, f"{name}.json")


class SpecFile:
    """The file of one resource's spec, in a directory that belongs to root.

    To be used in one thread at a time.
    """

    def __init__(self, directory: str, resource_name: str) -> None:
        """``directory`` is a path of this process."""
        self._directory = directory
        self.path = spec_path(directory, resource_name)
        self._written: tuple[bytes, tuple[int, ...]] | None = None
        self._identity: tuple[int, ...] | None = None

    def write(self, content: bytes | None, numbers: Sequence[int] = ()) -> bool:
        """Write ``content``, or remove the file if it is None, because there are no devices; return whether it changed.

        ``numbers`` are the device numbers (st_rdev) of the device nodes. If one changes, the same content is written
        again: a runtime caches the numbers that it reads first until the file changes, because ``fillMissingInfo``
        stores them in the library's cache (measured with 0.7.2 to 1.1.1). For the same reason, the first content is
        written even if the file has it already, and so is a file that another process has replaced, as in a rolling
        update. Temporary files that a killed process left are removed. Raises CdiError; the previous file then stays
        complete.
        """
        new = None if content is None else (content, tuple(numbers))
        with translate_errors(self.path):
            atomic_file.sweep(self._directory, re.escape(os.path.basename(self.path)))
            if content is None:
                changed = atomic_file.remove(self.path)
            elif changed := new != self._written or self._identity != self._current():
                self._replace(content)
            self._written = new
        return changed

    def rewrite(self) -> None:
        """Write the same content again after a device node was recreated. Raises CdiError."""
        with translate_errors(self.path):
            if self._written is not None:
                self._replace(self._written[0])

    def check(self, content: bytes) -> None:
        """Check that ``content`` could be written, without changing the file. Raises CdiError."""
        with translate_errors(self.path):
            atomic_file.make_directory(self._directory)
            atomic_file.remove(atomic_file.write_temporary(self.path, content)[0])

    def _replace(self, content: bytes) -> None:
        """Replace the file atomically; create the directory if it is missing.

        The temporary file is in the same directory, because its renaming wakes a library before 1.1.1
        (pkg/cdi/cache.go).
        """
        atomic_file.make_directory(self._directory)  # despite the umask: rootless runtimes read it too
        self._identity = atomic_file.identity(atomic_file.replace(self.path, content, sync=True))

    def _current(self) -> tuple[int, ...] | None:
        """Return the identity of the file as it is now; None if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return atomic_file.identity(os.lstat(self.path))
        return None


@contextlib.contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Raise CdiError instead of OSError in accesses to the spec at ``path``."""
    try:
        yield
    except OSError as error:
        raise CdiError(
            f"cannot update the CDI spec {path}: {error.strerror}; its directory must be the host's (mounted "
            f"into the container), writable for uid {os.getuid()}, and have free space"
        ) from error
