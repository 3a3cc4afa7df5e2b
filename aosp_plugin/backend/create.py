"""Creates the backend of a resource for the API that serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.config import Api

if TYPE_CHECKING:
    from aosp_plugin.binder.driver.host import Host
    from aosp_plugin.config import Resource


def create_backend(host: Host, resource: Resource, *, cdi_dir: str) -> BinderBackend:
    """Return the backend of a resource; a ``ClaimsBackend`` for DRA. The host is not accessed."""
    if resource.api is Api.DEVICE_PLUGIN:
        return BinderBackend(host, resource, cdi_dir=cdi_dir)
    from aosp_plugin.backend.claims_backend import ClaimsBackend  # noqa: PLC0415 - only DRA requires it

    return ClaimsBackend(host, resource, cdi_dir=cdi_dir)
