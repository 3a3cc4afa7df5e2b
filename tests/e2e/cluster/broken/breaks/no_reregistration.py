"""The plugin registers once: it notices neither a new kubelet nor the loss of its stream or socket."""

from __future__ import annotations

from typing import Any

from aosp_plugin.framework import registration
from aosp_plugin.framework.deviceplugin import supervisor

_progress = supervisor.Supervisor._progress


def _stopped(self: Any, *_: object) -> registration.Loss | None:
    return registration.Loss.STOPPED if self._stop.is_set() else None


def _until_registered(self: Any, view: Any) -> registration.Loss | None:
    return None if self.registered else _progress(self, view)


registration.Registration._lost = _stopped  # type: ignore[assignment,method-assign]
supervisor.Supervisor._progress = _until_registered  # type: ignore[method-assign]
