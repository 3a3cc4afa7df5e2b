"""Makes the slices of the API server what they should be, each with a request of its own and at a pace of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Literal, TypeAlias

from aosp_plugin.framework.aio import wait_any
from aosp_plugin.framework.apiserver.errors import ApiError, ConflictError, NotFoundError, Request
from aosp_plugin.framework.apiserver.paths import RESOURCE_SLICES, object_path
from aosp_plugin.framework.dra.lasting_problem import LastingProblem
from aosp_plugin.framework.dra.repairs import Repairs
from aosp_plugin.framework.dra.slice_follower import parsed_slice
from aosp_plugin.framework.dra.slices import TAINTS_FIELD, differences, replacement

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from aosp_plugin.framework.apiserver.client import ApiClient
    from aosp_plugin.framework.dra.mirror import Change, Mirror
    from aosp_plugin.framework.dra.observer import DraObserver
    from aosp_plugin.framework.dra.slices import Json, StoredSlice

LOG = logging.getLogger(__name__)

Action: TypeAlias = Literal["create", "update", "delete"]

PARALLEL = 8
"""Requests at a time: what a kubelet has deleted is soon back, and the API server's limits per client are kept."""


class SliceWriter:
    """Writes the slices of one driver on one node. For one event loop."""

    def __init__(
        self,
        api: ApiClient,
        driver: str,
        node_name: str,
        mirror: Mirror,
        observer: DraObserver,
        *,
        lost: Callable[[], None],
        taints_dropped: Callable[[], None],
        rng: random.Random | None = None,
    ) -> None:
        """``lost`` is called when another client has deleted a slice; ``taints_dropped`` must call ``want``."""
        self._api = api
        self._driver = driver
        self._node_name = node_name
        self._mirror = mirror
        self._observer = observer
        self._lost = lost
        self._taints_dropped = taints_dropped
        self._wanted: Mapping[str, Json] | None = None
        self._confirmed: set[str] = set()
        self._repairs = Repairs(observer, rng)
        self._writing: dict[str, Action] = {}
        self._failures: dict[str, ApiError] = {}
        # By name: what was wanted, and what the server made of it, which has to do.
        self._accepted: dict[str, tuple[Json, StoredSlice]] = {}
        self._reported = (0, 0)
        self._wake = asyncio.Event()
        self._stuck = LastingProblem()
        self._logged_changes: frozenset[str] = frozenset()

    @property
    def confirmed(self) -> bool:
        """Whether the API server has confirmed every wanted slice as it is now. May be read in any thread."""
        wanted = self._wanted
        return wanted is not None and len(self._confirmed) == len(wanted)

    @property
    def counts(self) -> tuple[int, int]:
        """The number of wanted slices, and of those that are confirmed. May be read in any thread."""
        return len(self._wanted or {}), len(self._confirmed)

    @property
    def problem(self) -> str:
        """Why slices are not as they should be; empty if nothing is known. May be read in any thread."""
        failures = list(self._failures.values())
        more = f" (and {len(failures) - 1} more slices)" if len(failures) > 1 else ""
        texts = [*[f"{error}{more}" for error in failures[:1]], self._repairs.problem, self._stuck.text]
        return "; ".join(filter(None, texts))

    def want(self, wanted: Mapping[str, Json] | None) -> None:
        """Set the slices that should exist, by name; None: write nothing, because it is not known."""
        before, self._wanted = self._wanted or {}, wanted
        after = wanted or {}
        for name in [name for name in {**before, **after} if before.get(name) != after.get(name)]:
            self._confirmed.discard(name)
            self._accepted.pop(name, None)
            self._repairs.forget(name)
        known = {**after, **self._mirror.slices, **self._writing}
        self._repairs.retain(known)
        for name in [name for name in self._failures if name not in known]:
            self._no_failure(name)
        for name in after:
            self._assess(name, "changed")
        self._report()
        self._wake.set()

    def changed(self, name: str, change: Change) -> None:
        """Handle a change of a slice in the mirror."""
        self._assess(name, change)
        self._report()
        self._wake.set()

    def try_again(self) -> None:
        """Try at once what failed, and what the server did not store as it was sent: it may be another server now."""
        self._confirmed -= self._accepted.keys()
        self._accepted.clear()
        self._repairs.retry_now()
        self.want(self._wanted)

    async def run(self) -> None:
        """Write slices until cancelled. The mirror must have a list before anything is written."""
        async with asyncio.TaskGroup() as writes:
            while True:
                self._wake.clear()
                await wait_any(self._wake, timeout=self._start_writes(writes))

    def _start_writes(self, writes: asyncio.TaskGroup) -> float | None:
        """Start the writes that are due; return the seconds until the next one is, if one is known."""
        self._report_stuck()
        delays = [self._repairs.log(self._mirror.slices)]
        now = time.monotonic()
        for name, action in self._actions().items():
            due = self._repairs.pacing(name).due
            if due > now:
                delays.append(due - now)
            elif len(self._writing) < PARALLEL:
                self._writing[name] = action
                writes.create_task(self._write(name, action))
        return min((delay for delay in delays if delay is not None), default=None)

    def _actions(self) -> Mapping[str, Action]:
        """Return what is to be done, obsolete slices first: the pool of one must not have two slices."""
        if self._wanted is None or not self._mirror.complete:
            return {}
        names = [name for name in {**self._wanted, **self._mirror.slices} if name not in self._writing]
        actions = {name: action for name in names if (action := self._action(name)) is not None}
        deletions = {name: action for name, action in actions.items() if action == "delete"}
        deleting = [name for name, action in self._writing.items() if action == "delete"]
        # Those that fail hold up nothing else.
        return deletions if {*deletions, *deleting} - self._failures.keys() else actions

    def _action(self, name: str) -> Action | None:
        wanted, stored = (self._wanted or {}).get(name), self._mirror.slices.get(name)
        if stored is None:
            return "create" if wanted is not None else None
        if stored.deleting:  # its finalizers are the concern of those who set them
            return None
        if wanted is None or stored.pool != wanted["spec"]["pool"]["name"]:  # a pool's name cannot be changed
            return "delete"
        return None if name in self._confirmed else "update"

    async def _write(self, name: str, action: Action) -> None:
        wanted, stored = (self._wanted or {}).get(name), self._mirror.slices.get(name)
        try:
            if action == "delete":
                await self._delete(name, stored)
            else:
                await self._store(name, wanted, stored)
        except ConflictError:  # it exists, or is another one than the mirror has
            await self._read(name, stored)
        except NotFoundError as error:
            if stored is None:
                self._failed(name, error)
            elif self._mirror.absent(stored):
                self._assess(name, "deleted")
        except ApiError as error:
            self._failed(name, error)
        finally:
            del self._writing[name]
        self._report()
        self._wake.set()

    async def _delete(self, name: str, stored: StoredSlice | None) -> None:
        """Delete an obsolete slice, unless it has changed. Raises ApiError."""
        if stored is not None:
            path = object_path(RESOURCE_SLICES, name)
            await self._api.delete(path, uid=stored.uid, resource_version=stored.resource_version)
            LOG.info("ResourceSlice deleted", extra={"slice": name})
            self._mirror.absent(stored)
            self._succeeded(name)

    async def _store(self, name: str, wanted: Json | None, stored: StoredSlice | None) -> None:
        """Create or update a slice. Raises ApiError."""
        if wanted is None:
            return
        if stored is None:
            answer = parsed_slice("create", await self._api.create(RESOURCE_SLICES, wanted))
        else:
            path = object_path(RESOURCE_SLICES, name)
            answer = parsed_slice("update", await self._api.update(path, replacement(wanted, stored)))
        LOG.debug("ResourceSlice written", extra={"slice": name})
        self._mirror.stored(answer)
        self._succeeded(name)
        if fields := differences(wanted, answer):
            self._handle_dropped(name, wanted, answer, fields)
        self._assess(name, "changed")

    async def _read(self, name: str, stored: StoredSlice | None) -> None:
        """Read a slice after a conflict; it is written again soon, if it has to be."""
        self._repairs.pacing(name).failed()
        try:
            found = parsed_slice("get", await self._api.get(object_path(RESOURCE_SLICES, name)))
        except NotFoundError:
            if stored is not None:
                self._mirror.absent(stored)
        except ApiError as error:
            self._failed(name, error)
            return
        else:
            if not found.belongs_to(self._driver, self._node_name):
                request = Request("get", object_path(RESOURCE_SLICES, name))
                self._failed(name, ApiError(request, "the ResourceSlice is of another driver or of another node"))
                return
            self._mirror.stored(found)
        self._assess(name, "changed")

    def _handle_dropped(self, name: str, wanted: Json, answer: StoredSlice, fields: frozenset[str]) -> None:
        """Do without the fields that the server has dropped or changed."""
        if TAINTS_FIELD in fields and any("taints" in device for device in wanted["spec"]["devices"]):
            self._taints_dropped()
            return
        self._accepted[name] = wanted, answer
        if not fields <= self._logged_changes:
            self._logged_changes |= fields
            LOG.warning("API server changes fields of ResourceSlices", extra={"fields": ",".join(sorted(fields))})

    def _assess(self, name: str, change: Change) -> None:
        """Note whether a slice is as it should be, or why it no longer is."""
        if self._is_right(name):
            self._confirmed.add(name)
            self._no_failure(name)
            self._repairs.repaired(name)
        elif name in self._confirmed:
            self._confirmed.discard(name)
            self._repairs.damaged(name, change)
            if name not in self._mirror.slices:
                self._lost()

    def _is_right(self, name: str) -> bool:
        wanted, stored = (self._wanted or {}).get(name), self._mirror.slices.get(name)
        if wanted is None or stored is None or stored.deleting:
            return False
        if not differences(wanted, stored):
            return True
        sent, answer = self._accepted.get(name, (None, None))
        return (
            sent == wanted and answer is not None and (answer.spec, answer.metadata) == (stored.spec, stored.metadata)
        )

    def _succeeded(self, name: str) -> None:
        self._repairs.pacing(name).succeeded()
        self._no_failure(name)

    def _failed(self, name: str, error: ApiError) -> None:
        """Note a request that failed; the same error of several slices, or again and again, is logged once.

        If the answer was lost on its way, the watch may have shown already that the request has succeeded.
        """
        if self._action(name) is None:
            return
        self._repairs.pacing(name).failed(error)
        if all((type(error), error.message) != (type(other), other.message) for other in self._failures.values()):
            LOG.warning("ResourceSlice cannot be written, retrying", extra={"slice": name, "error": str(error)})
        self._failures[name] = error

    def _no_failure(self, name: str) -> None:
        if self._failures.pop(name, None) is not None and not self._failures:
            LOG.info("ResourceSlices can be written again")

    def _report_stuck(self) -> None:
        """Report slices that were deleted but still exist, and can therefore not be created."""
        stuck = [
            name for name in self._wanted or () if name in self._mirror.slices and self._mirror.slices[name].deleting
        ]
        if stuck:
            self._stuck.begins(f"the ResourceSlice {stuck[0]} is being deleted, but its finalizers remain")
        else:
            self._stuck.ends()

    def _report(self) -> None:
        counts = self.counts
        if counts != self._reported:
            self._reported = counts
            self._observer.slices(*counts)
            if self.confirmed and not self._repairs.problem:
                devices = sum(len(wanted["spec"].get("devices", [])) for wanted in (self._wanted or {}).values())
                LOG.info("ResourceSlices published", extra={"slices": counts[0], "devices": devices})
