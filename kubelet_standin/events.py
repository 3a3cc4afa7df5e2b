"""Events of the stand-in kubelet, for logs and for programs that follow it."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Event(NamedTuple):
    """One event.

    The names and their fields:

    ======================== ==================================================================================
    kubelet-started          directory, version
    kubelet-stopped
    plugin-registered        resource, endpoint
    plugin-refused           resource, endpoint, reason
    registration-cancelled   resource, endpoint: the plugin gave up, or the kubelet stopped
    stream-opened            resource, endpoint
    stream-ended             resource, endpoint, reason
    devices-changed          resource, capacity, allocatable, unhealthy
    resource-forgotten       resource: its plugin was absent for longer than the grace period
    pod-admitted             pod, uid
    pod-rejected             pod, reason, message
    pod-removed              pod
    container-allocated      pod, allocation (a ContainerAllocation)
    container-started        pod, container
    container-failed         pod, container, reason, message
    ======================== ==================================================================================

    Those of :class:`~kubelet_standin.dra.kubelet.DraKubelet`, besides the first two:

    ======================== ==================================================================================
    registration-started     endpoint: the path of the socket
    registration-failed      endpoint, reason
    driver-registered        driver, endpoint
    driver-deregistered      driver, endpoint
    driver-connected         driver, endpoint
    driver-disconnected      driver, endpoint
    driver-called            driver, method, claims (UIDs)
    health-reported          driver, devices (their number)
    claim-prepared           claim, uid
    claim-unprepared         claim, uid
    pod-prepared             pod
    pod-waiting              pod, reason: its claims could not be prepared
    pod-unprepared           pod
    slices-wiped             driver; empty for all drivers
    slices-not-wiped         driver, reason
    ======================== ==================================================================================
    """

    name: str
    fields: Mapping[str, object]


class Emit(Protocol):
    """Reports an event, and wakes ``Kubelet.wait_for``."""

    def __call__(self, name: str, /, **fields: object) -> None:
        """Report the event ``name`` with its fields."""
