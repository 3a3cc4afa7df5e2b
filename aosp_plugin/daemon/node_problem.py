"""A problem with what the plugin writes for its Node: logged when it begins, changes and ends, and a metric."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from aosp_plugin.framework.apiserver.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = logging.getLogger(__name__)

NodeTask = Literal["events", "startup_taint", "feature_file"]


class NodeProblem:
    """Why a task fails. It affects neither readiness nor devices."""

    def __init__(self, task: NodeTask, changed: Callable[[NodeTask, int], None]) -> None:
        """Call ``changed`` with the task and the number of its problems, 0 or 1, now and after each attempt."""
        self._task: NodeTask = task
        self._changed = changed
        self._kind: object = None
        changed(task, 0)

    def failed(self, error: Exception) -> None:
        """Handle a failure. The same kind of error is logged once, because its text may vary."""
        kind = (type(error), error.status if isinstance(error, ApiError) else str(error))
        before, self._kind = self._kind, kind
        self._changed(self._task, 1)
        if kind != before:
            LOG.warning("node task failed, retrying", extra={"task": self._task, "error": str(error)})

    def ended(self) -> None:
        """Handle a success."""
        before, self._kind = self._kind, None
        self._changed(self._task, 0)
        if before is not None:
            LOG.info("node task recovered", extra={"task": self._task})
