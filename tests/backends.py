"""Binder backends over real directories, for the tests of the backend package."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.claims_backend import ClaimsBackend
from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Config, Resource
from aosp_plugin.config.values import Api

CDI_DIRECTORY = Config().cdi_dir


def binder_backend(
    directory: Path | str,
    *,
    host: Host | None = None,
    cdi_dir: Path | str = CDI_DIRECTORY,
    clock: Callable[[], float] = time.monotonic,
    **keys: Any,
) -> BinderBackend:
    """Return a backend that accepts plain files as binder devices; ``keys`` are configuration keys."""
    resource = Resource(**{"device_dir": str(directory), "verify": Verify.FILE, "shared_devices": (), **keys})
    kind = ClaimsBackend if resource.api is Api.DRA else BinderBackend
    return kind(host or Host(), resource, cdi_dir=str(cdi_dir), clock=clock)


def scan(backend: BinderBackend) -> dict[str, str]:
    """Scan, and return the reason of each device, empty if it is healthy."""
    backend.scan()
    return {device.id: device.reason for device in backend.devices()}
