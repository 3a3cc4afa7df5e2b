"""The Node object that owns a driver's slices, so that the garbage collector deletes them with it."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.apiserver.errors import ApiError, NotFoundError
from aosp_plugin.framework.apiserver.paths import NODES, object_path
from aosp_plugin.framework.apiserver.retries import Backoff
from aosp_plugin.framework.dra.lasting_problem import LastingProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from aosp_plugin.framework.apiserver.client import ApiClient

T = TypeVar("T")

INTERVAL = 1800.0
"""Seconds between two requests without a reason. A Node that is deleted takes its slices with it, which is a reason."""
LONGEST_PAUSE = 10.0
"""Seconds; the upper limit of the pauses after failures and while there is no Node."""


class _Metadata(msgspec.Struct):
    uid: Annotated[str, msgspec.Meta(min_length=1)]


class _Node(msgspec.Struct):
    metadata: _Metadata


class NodeOwner:
    """Keeps the UID of this node's Node object."""

    def __init__(
        self, api: ApiClient, node_name: str, changed: Callable[[], None], rng: random.Random | None = None
    ) -> None:
        """Call ``changed`` when the UID is another one than before."""
        self._api = api
        self._name = node_name
        self._changed = changed
        self._rng = rng or random.Random()  # noqa: S311 - spreads the load
        self._due = asyncio.Event()
        self._problem = LastingProblem("request of the Node")
        self.uid = ""
        """UID of the Node object; empty until it is known, and while the object does not exist."""

    @property
    def problem(self) -> str:
        """Why the UID is unknown or may be outdated; empty if it is current. May be read in any thread."""
        return self._problem.text

    def check(self) -> None:
        """Request the Node object soon, because it may be another one."""
        self._due.set()

    async def run(self) -> None:
        """Keep the UID current until cancelled."""
        backoff = Backoff(self._rng, cap=LONGEST_PAUSE)
        while True:
            self._due.clear()
            try:
                node = await self._api.get(object_path(NODES, self._name), _Node)
            except NotFoundError:
                self._set("")
                self._problem.begins(f"there is no Node {self._name}: is NODE_NAME the name of this node?")
                pause = backoff.pause()
            except ApiError as error:
                self._problem.failed(error)
                pause = backoff.pause(error)
            else:
                self._problem.ends()
                self._set(node.metadata.uid)
                backoff.succeeded()
                pause = INTERVAL * self._rng.uniform(0.8, 1.2)
            await wait_any(self._due, timeout=pause)

    def _set(self, uid: str) -> None:
        before, self.uid = self.uid, uid
        if before != uid:
            self._changed()
