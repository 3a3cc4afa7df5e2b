"""Records when each pod reaches each stage, as a watch on the API server reports it."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster.api import BrokenAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.e2e.cluster.api import Api

SCHEDULED: Final = "PodScheduled"
SANDBOX: Final = "PodReadyToStartContainers"
RUNNING: Final = "Running"
READY: Final = "Ready"
GONE: Final = "gone"
_RUN: Final = 7200.0
"""Seconds of the watch; longer than a run."""


def stages(event: dict[str, Any]) -> set[str]:
    """Return the stages that a pod has reached according to an event of a watch."""
    if event["type"] == "DELETED":
        return {GONE}
    status = event["object"].get("status", {})
    reached = {entry["type"] for entry in status.get("conditions", ()) if entry["status"] == "True"}
    return reached | ({RUNNING} if status.get("phase") == "Running" else set())


class StageRecorder:
    """The time at which each pod of a namespace first has each stage, recorded in a thread until the process ends."""

    def __init__(self, api: Api, path: str) -> None:
        """Start the watch on the collection ``path``."""
        self._api = api
        self._path = path
        self._times: dict[str, dict[str, float]] = {}
        self._thread = threading.Thread(target=self._record, name="watch on pods", daemon=True)
        self._thread.start()

    def times(self, stage: str, pods: Iterable[str]) -> dict[str, float]:
        """Return the time at which each of these pods reached a stage, without those that have not."""
        if not self._thread.is_alive():
            raise RuntimeError("the watch on pods has ended")
        found = self._times.get(stage, {})
        return {pod: found[pod] for pod in pods if pod in found}

    def _record(self) -> None:
        """Watch until the run ends, and go on where the API server has ended the watch of a client that is too slow."""
        query: dict[str, str] = {}
        while True:
            with contextlib.suppress(BrokenAnswerError):
                for event in self._api.watch(self._path, _RUN, **query):
                    at, metadata = time.time(), event["object"]["metadata"]
                    for stage in stages(event):
                        self._times.setdefault(stage, {}).setdefault(metadata["name"], at)
                    query["resourceVersion"] = metadata["resourceVersion"]
