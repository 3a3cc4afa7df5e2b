"""A container gets the device after the one that the kubelet has allocated to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.backend.binder_backend import BinderBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aosp_plugin.framework.devices import ContainerEdits

_allocate = BinderBackend.allocate


def _next(self: BinderBackend, ids: Sequence[str]) -> ContainerEdits:
    order = list(self._scanned.sets)
    return _allocate(self, [order[(order.index(device_id) + 1) % len(order)] for device_id in ids])


BinderBackend.allocate = _next  # type: ignore[method-assign]
