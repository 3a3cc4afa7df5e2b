"""Keeps up with the slices that the API server has: a list, a watch from there, and lists from time to time.

A watch that breaks is resumed where it was: all nodes lose their watches when an API server ends, and their lists would
come at the same time. A list follows later, in case that events were lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, NamedTuple

from aosp_plugin.framework.aio import complete_unless, wait_any
from aosp_plugin.framework.apiserver.errors import ApiError, ApiUnavailableError, GoneError, NotFoundError, Request
from aosp_plugin.framework.apiserver.paths import RESOURCE_API, RESOURCE_SLICES
from aosp_plugin.framework.apiserver.retries import Backoff
from aosp_plugin.framework.dra.lasting_problem import LastingProblem
from aosp_plugin.framework.dra.mirror import Mirror
from aosp_plugin.framework.dra.slices import stored_slice, version_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from aosp_plugin.framework.apiserver.answers import WatchEvent
    from aosp_plugin.framework.apiserver.client import ApiClient
    from aosp_plugin.framework.dra.mirror import Change
    from aosp_plugin.framework.dra.slices import StoredSlice

RESUMES = 3
"""Attempts to resume a watch, one after another, before the slices are listed again."""


class FollowTimings(NamedTuple):
    """Times in seconds."""

    relist: float = 300.0
    """Between two lists without a reason: a lost event costs the devices of a node for as long."""
    relist_after_break: tuple[float, float] = (5.0, 30.0)
    """After a watch broke; random, in this range."""
    stable: float = 1.0
    """A watch that ends earlier counts as broken, and one that lasts for as long ends the problem of earlier ones."""


IN_LIFE = FollowTimings()


class SliceFollower:
    """Keeps a mirror of the slices of one driver on one node."""

    def __init__(
        self,
        api: ApiClient,
        driver: str,
        node_name: str,
        changed: Callable[[str, Change], None],
        *,
        reconnected: Callable[[], None] = lambda: None,
        timings: FollowTimings = IN_LIFE,
        rng: random.Random | None = None,
    ) -> None:
        """Call ``changed`` with a slice's name after each change of the mirror.

        Call ``reconnected`` after the list that follows a break: the server may be another version now.
        """
        self.mirror = Mirror()
        self._api = api
        self._driver = driver
        self._node_name = node_name
        self._changed = changed
        self._reconnected = reconnected
        self._timings = timings
        self._rng = rng or random.Random()  # noqa: S311 - spreads the load
        self._list_due = asyncio.Event()
        self._listed = asyncio.Event()
        self._listed_version = ""
        self._list_timer: asyncio.TimerHandle | None = None
        self._broken = True  # until the first list, which is a reason to write also if it is empty
        self._rewound = asyncio.Event()
        self._version = ""
        self._breaks = 0
        self._watch_backoff = Backoff(self._rng)
        self._list_problem = LastingProblem("list of ResourceSlices")
        self._watch_problem = LastingProblem("watch of ResourceSlices")

    @property
    def problem(self) -> str:
        """Why the mirror may be outdated; empty if it is current. May be read in any thread."""
        return self._list_problem.text or self._watch_problem.text

    def check(self) -> None:
        """List the slices soon."""
        self._list_due.set()

    async def run(self) -> None:
        """Keep up with the slices until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._list_repeatedly())
                tasks.create_task(self._watch_repeatedly())
        finally:
            if self._list_timer is not None:
                self._list_timer.cancel()

    @property
    def _selector(self) -> str:
        return f"spec.nodeName={self._node_name},spec.driver={self._driver}"

    async def _list_repeatedly(self) -> None:
        backoff = Backoff(self._rng)
        while True:
            self._list_due.clear()
            try:
                await self._list()
            except ApiError as error:
                self._list_problem.failed(error, _hint(error))
                await asyncio.sleep(backoff.pause(error))
                continue
            self._list_problem.ends()
            backoff.succeeded()
            await wait_any(self._list_due, timeout=self._timings.relist * self._rng.uniform(0.8, 1.2))

    async def _list(self) -> None:
        """List the slices once. Raises ApiError."""
        broken, self._broken = self._broken, True
        known = self.mirror.highest_version
        found = await self._api.list(RESOURCE_SLICES, field_selector=self._selector)
        slices = [parsed_slice("list", item) for item in found.items]
        self._broken = False
        version = version_number(found.resource_version)
        if version < known:  # the server's data was restored from a backup
            self.mirror.rewind()
            self._version = found.resource_version
            self._rewound.set()
        changes = self.mirror.listed(filter(self._is_ours, slices), version)
        self._listed_version = found.resource_version
        self._listed.set()
        for name, change in changes.items():
            self._changed(name, change)
        if broken:
            self._reconnected()

    async def _watch_repeatedly(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._version or self._breaks > RESUMES:
                await self._wait_for_list()
            started = loop.time()
            failure: ApiError | None = None
            self._rewound.clear()
            try:
                if not await complete_unless(self._rewound, self._watch()):
                    self._version = self._listed_version
                    continue
            except GoneError:
                self._version = ""
            except ApiError as error:
                failure = error
            if failure is None and loop.time() - started >= self._timings.stable:
                continue
            self._breaks += 1
            self._broken = True
            self._list_later()
            if failure is not None and self._breaks > 1:  # one alone is an API server that ended
                self._watch_problem.failed(failure)
            if failure is not None or self._breaks > 1:
                await asyncio.sleep(self._watch_backoff.pause(failure))

    def _list_later(self) -> None:
        """List after a random time, so that not all nodes list at once after an API server ended."""
        if self._list_timer is None or self._list_timer.when() <= asyncio.get_running_loop().time():
            delay = self._rng.uniform(*self._timings.relist_after_break)
            self._list_timer = asyncio.get_running_loop().call_later(delay, self._list_due.set)

    async def _wait_for_list(self) -> None:
        """Wait for a list, from which a watch can start."""
        if self._listed_version:
            self._listed.clear()
            self.check()
        await self._listed.wait()
        self._version = self._listed_version

    async def _watch(self) -> None:
        """Handle events until the server ends the watch. Raises ApiError."""
        stable: list[asyncio.TimerHandle] = []

        def opened() -> None:
            stable.append(asyncio.get_running_loop().call_later(self._timings.stable, self._watch_is_stable))

        watch = self._api.watch(
            RESOURCE_SLICES, field_selector=self._selector, resource_version=self._version, opened=opened
        )
        try:
            async with contextlib.aclosing(watch) as events:
                async for event in events:
                    self._handle(event)
                    self._version = event.resource_version
        finally:
            for timer in stable:
                timer.cancel()

    def _watch_is_stable(self) -> None:
        self._breaks = 0
        self._watch_backoff.succeeded()
        self._watch_problem.ends()

    def _handle(self, event: WatchEvent) -> None:
        """Handle one event. Raises ApiUnavailableError if it is invalid."""
        if event.type == "BOOKMARK":
            return
        found = parsed_slice("watch", event.object)
        if not self._is_ours(found):
            return
        if event.type == "DELETED":
            if self.mirror.deleted(found.name, found.version):
                self._changed(found.name, "deleted")
        elif self.mirror.stored(found):
            self._changed(found.name, "changed")

    def _is_ours(self, found: StoredSlice) -> bool:
        """Return whether the server has applied the field selector: slices of others must never be touched."""
        return found.belongs_to(self._driver, self._node_name)


def parsed_slice(verb: str, item: Any) -> StoredSlice:
    """Return a slice. Raises ApiUnavailableError if it is none."""
    try:
        return stored_slice(item)
    except ValueError as error:
        raise ApiUnavailableError(Request(verb, RESOURCE_SLICES), str(error)) from error


def _hint(error: ApiError) -> str:
    """Return what an answer means that has a meaning of its own here; empty for others."""
    if isinstance(error, NotFoundError):
        return f"the API server does not serve {RESOURCE_API}, which requires Kubernetes 1.34 or newer"
    return ""
