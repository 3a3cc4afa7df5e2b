"""The differences between kubelet versions."""

from __future__ import annotations

import enum
import stat


class Behaviour(enum.Enum):
    """The kubelet version that the stand-in behaves like."""

    OLD = "1.20"
    """Register is answered before the plugin is dialled, and the options of the request count. When a plugin registers
    again, its old stream stays open, and messages on it still count. The podresources API has only List."""

    EARLY = "1.25"
    """Like ``SWEEPING``, with some of the words of ``OLD``, and without CDI devices and sidecars."""

    SWEEPING = "1.26 to 1.32"
    """Like ``BUGGY``, but a start removes all files of the plugin directory, not only sockets. 1.31.0 is like
    ``BUGGY``. CDI devices are those of 1.28, where they have a feature gate, and later; sidecars those of 1.29."""

    BUGGY = "1.33 to 1.36"
    """Like ``NEW``, but plugins are identified by resource name only: when an old stream of the resource ends, the
    new plugin is disconnected (kubernetes issues 121994, 127803, 125501)."""

    NEW = "1.37"
    """Register dials the plugin and calls GetDevicePluginOptions before it is answered. Plugins are identified by
    resource name and socket path."""

    @property
    def synchronous(self) -> bool:
        """Whether Register is answered only after the plugin was dialled and has returned its options."""
        return self is not Behaviour.OLD

    @property
    def default_numa(self) -> int:
        """The NUMA key under which a device without topology is stored (manager.go:908 in 1.20.2)."""
        return 0 if self is Behaviour.OLD else -1

    @property
    def identifies_by_name(self) -> bool:
        """Whether plugins are identified by resource name only, which is the bug of ``BUGGY``."""
        return self in {Behaviour.EARLY, Behaviour.SWEEPING, Behaviour.BUGGY}

    @property
    def knows_cdi(self) -> bool:
        """Whether ``cdi_devices`` of an Allocate response reach the container."""
        return not self._before_1_26

    @property
    def knows_allocatable_resources(self) -> bool:
        """Whether the podresources API has GetAllocatableResources (alpha in 1.21, on by default from 1.23)."""
        return self is not Behaviour.OLD

    @property
    def knows_sidecars(self) -> bool:
        """Whether a restartable init container keeps its devices."""
        return not self._before_1_26

    def authority(self, socket_path: str) -> str:
        """Return ``:authority`` of the calls to a plugin: grpc-go sent the raw path before PR 112597, in 1.26."""
        return socket_path if self._before_1_26 else "localhost"

    def sweeps(self, mode: int) -> bool:
        """Whether a start removes a directory entry with this ``st_mode`` (symbolic links are followed)."""
        return stat.S_ISSOCK(mode) if self in {Behaviour.BUGGY, Behaviour.NEW} else not stat.S_ISDIR(mode)

    def unregistered(self, resource: str) -> str:
        """Return the error for a resource that is allocated, but whose plugin was forgotten."""
        cannot = "can't" if self is Behaviour.OLD else "cannot"
        return f"{cannot} allocate unregistered device {resource}"

    def rejection(self, error: str) -> str:
        """Return ``status.message`` of a rejected pod (cm/topologymanager/scope.go)."""
        prefix = "Pod" if self._before_1_26 else "Pod was rejected:"
        return f"{prefix} Allocate failed due to {error}, which is unexpected"

    @property
    def _before_1_26(self) -> bool:
        return self in {Behaviour.OLD, Behaviour.EARLY}
