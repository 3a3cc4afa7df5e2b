"""The differences between kubelet versions in their dealings with DRA drivers."""

from __future__ import annotations

import enum
from typing import Final

DRA_SERVICES: Final = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
"""The gRPC services that all four versions know, by the names in ``supported_versions``. Their order does not matter:
the first name in the driver's order counts (pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go,
``validateSupportedServices``)."""

HEALTH_V1: Final = "v1.DRAResourceHealth"
HEALTH_V1ALPHA1: Final = "v1alpha1.DRAResourceHealth"


class DraVersion(enum.Enum):
    """The kubelet version that the stand-in behaves like, as read in v1.34.4, v1.35.4, v1.36.3 and v1.37.1."""

    V1_34 = (1, 34)
    V1_35 = (1, 35)
    V1_36 = (1, 36)
    V1_37 = (1, 37)

    def __str__(self) -> str:
        """Return the version, such as 1.37."""
        return ".".join(map(str, self.value))

    @property
    def watches_health(self) -> bool:
        """Whether the feature gate ResourceHealthStatus is on by default."""
        return self.value >= (1, 36)

    @property
    def health_services(self) -> tuple[str, ...]:
        """The health services that this version knows, its favourite first."""
        return (HEALTH_V1, HEALTH_V1ALPHA1) if self.value >= (1, 37) else (HEALTH_V1ALPHA1,)

    @property
    def watches_unannounced_health(self) -> bool:
        """Whether the health stream is opened, and after its end opened again, if no health service was announced.

        Newer versions also stop if the driver answers UNIMPLEMENTED.
        """
        return self.value < (1, 37)

    @property
    def knows_health_timeout(self) -> bool:
        """Whether ``health_check_timeout_seconds`` counts."""
        return self.value >= (1, 35)

    @property
    def knows_health_message(self) -> bool:
        """Whether ``message`` of a device's health counts."""
        return self.value >= (1, 36)

    @property
    def repeats_failed_registration(self) -> bool:
        """Whether a registration that failed after its validation is tried again, on the same socket.

        Older versions consider the socket registered (operation_generator.go without ``RemovePlugin``); if only
        NotifyRegistrationStatus failed, they also use the driver.
        """
        return self.value >= (1, 36)

    @property
    def guards_unprepare(self) -> bool:
        """Whether a claim is left alone when a pod ends that never was prepared, and takes no pods while it ends.

        Older versions unprepare a claim that another pod still uses (kubernetes issue 140212).
        """
        return self.value >= (1, 37)

    @property
    def resets_devices(self) -> bool:
        """Whether a repeated Prepare replaces the devices of the first one, instead of adding to them."""
        return self.value >= (1, 37)
