"""How kubelets differ: everything that depends on the version, in one place."""

from __future__ import annotations

import enum
import stat


class Behaviour(enum.Enum):
    """Which kubelet the stand-in behaves like."""

    OLD = "1.20"
    """Register answers at once and the plugin is dialled afterwards; the options of the request count; a
    plugin that registers again keeps its old stream, whose messages still count."""

    BUGGY = "1.25 to 1.36"
    """Like ``NEW``, but plugins are told apart by resource name alone: when an old stream of the resource
    ends, the new plugin is disconnected (kubernetes issues 121994, 127803, 125501)."""

    NEW = "1.37"
    """Register dials, asks GetDevicePluginOptions, and only then answers; plugins are told apart by resource
    name and socket path."""

    @property
    def synchronous(self) -> bool:
        """Whether Register answers only once the plugin has been dialled and has told its options."""
        return self is not Behaviour.OLD

    @property
    def default_numa(self) -> int:
        """The NUMA key under which a device without topology is stored (manager.go:908 in 1.20.2)."""
        return 0 if self is Behaviour.OLD else -1

    @property
    def knows_cdi(self) -> bool:
        """Whether ``cdi_devices`` of an Allocate response reach the container."""
        return self is not Behaviour.OLD

    @property
    def knows_sidecars(self) -> bool:
        """Whether a restartable init container keeps its devices to itself."""
        return self is not Behaviour.OLD

    def authority(self, socket_path: str) -> str:
        """Return ``:authority`` of the calls to a plugin: grpc-go sent the raw path before PR 112597."""
        return socket_path if self is Behaviour.OLD else "localhost"

    def sweeps(self, mode: int) -> bool:
        """Whether a start removes a directory entry of this ``st_mode`` (links followed)."""
        return not stat.S_ISDIR(mode) if self is Behaviour.OLD else stat.S_ISSOCK(mode)

    def unregistered(self, resource: str) -> str:
        """Return the error for a resource that is allocated somewhere, but whose plugin is forgotten."""
        cannot = "can't" if self is Behaviour.OLD else "cannot"
        return f"{cannot} allocate unregistered device {resource}"

    def rejection(self, error: str) -> str:
        """Return ``status.message`` of a pod that was not admitted (cm/topologymanager/scope.go)."""
        prefix = "Pod" if self is Behaviour.OLD else "Pod was rejected:"
        return f"{prefix} Allocate failed due to {error}, which is unexpected"
