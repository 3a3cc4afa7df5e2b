"""The generations of the kubelet, and the differences between them."""

import enum
import stat
from typing import Final

DRA_SERVICES: Final = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
"""The gRPC services that all versions know, by the names in ``supported_versions``. Their order does not matter: the
first name in the driver's order counts (pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go,
``validateSupportedServices``)."""

HEALTH_V1: Final = "v1.DRAResourceHealth"
HEALTH_V1ALPHA1: Final = "v1alpha1.DRAResourceHealth"


class KubeletVersion(enum.IntEnum):
    """The kubelet that the stand-in behaves like: one of three generations, by the last minor version of each."""

    V1_32 = 32
    """1.26 to 1.32; for DRA drivers, 1.34 and 1.35. A start removes all files of the plugin directory. CDI devices are
    those of 1.28 and sidecars those of 1.29. 1.31.0 is like ``V1_36``."""

    V1_36 = 36
    """1.33 to 1.36; for DRA drivers, 1.36. A start removes only sockets. As before, plugins are identified by resource
    name only: when an old stream of the resource ends, the new plugin is disconnected (kubernetes issues 121994,
    127803, 125501)."""

    V1_37 = 37
    """1.37. Plugins are identified by resource name and socket path; the remaining one of two keeps its devices."""

    def __str__(self) -> str:
        """Return the version, such as 1.37."""
        return f"1.{self.value}"

    @property
    def identifies_by_name(self) -> bool:
        """Whether device plugins are identified by resource name only."""
        return self < KubeletVersion.V1_37

    def sweeps(self, mode: int) -> bool:
        """Whether a start removes a directory entry with this ``st_mode`` (symbolic links are followed)."""
        return not stat.S_ISDIR(mode) if self < KubeletVersion.V1_36 else stat.S_ISSOCK(mode)

    @property
    def watches_health(self) -> bool:
        """Whether the feature gate ResourceHealthStatus is on by default, as of which a health has a message."""
        return self >= KubeletVersion.V1_36

    @property
    def health_services(self) -> tuple[str, ...]:
        """The health services of DRA drivers that this version knows, its favourite first."""
        return (HEALTH_V1, HEALTH_V1ALPHA1) if self >= KubeletVersion.V1_37 else (HEALTH_V1ALPHA1,)

    @property
    def watches_unannounced_health(self) -> bool:
        """Whether the health stream is opened, and after its end opened again, if no health service was announced.

        Newer versions also stop if the driver answers UNIMPLEMENTED.
        """
        return self < KubeletVersion.V1_37

    @property
    def repeats_failed_registration(self) -> bool:
        """Whether a DRA registration that failed after its validation is tried again, on the same socket.

        Older versions consider the socket registered (operation_generator.go without ``RemovePlugin``); if only
        NotifyRegistrationStatus failed, they also use the driver.
        """
        return self >= KubeletVersion.V1_36

    @property
    def guards_unprepare(self) -> bool:
        """Whether a claim is left alone when a pod ends that never was prepared, and takes no pods while it ends.

        Older versions unprepare a claim that another pod still uses (kubernetes issue 140212).
        """
        return self >= KubeletVersion.V1_37

    @property
    def resets_devices(self) -> bool:
        """Whether a repeated Prepare replaces the devices of the first one, instead of adding to them."""
        return self >= KubeletVersion.V1_37


NEWEST: Final = KubeletVersion.V1_37
