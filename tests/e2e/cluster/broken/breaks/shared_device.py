"""All containers get the first device, whichever the kubelet has allocated to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.backend.binder_backend import BinderBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aosp_plugin.framework.devices import ContainerEdits

_allocate = BinderBackend.allocate


def _first(self: BinderBackend, ids: Sequence[str]) -> ContainerEdits:
    return _allocate(self, list(self._scanned.sets)[: len(ids)])


BinderBackend.allocate = _first  # type: ignore[method-assign]
