"""The plugin registers once: it notices neither a new kubelet nor the loss of its stream or socket."""

from __future__ import annotations

from typing import Any

from aosp_plugin.framework.deviceplugin import supervisor


def _stopped(self: Any, *_: object) -> supervisor.DisconnectReason | None:
    return supervisor.DisconnectReason.STOPPED if self._stop.is_set() else None


def _ignore(*_: object) -> None:
    pass


supervisor.Supervisor._detect_failure = _stopped  # type: ignore[assignment,method-assign]
supervisor.Supervisor.reregister = _ignore  # type: ignore[assignment,method-assign]
