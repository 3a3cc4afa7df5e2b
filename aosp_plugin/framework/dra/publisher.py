"""Publishes the devices as ResourceSlices: lists the slices, compares them with the devices, writes the difference.

That happens whenever the devices change, the watch shows a change of the slices, or a timer is due, and again after
every failure and repair.

Every kubelet that starts deletes all slices of its node, and slices that are not written again cost the node its
devices (pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go). The watch is there to notice that at once.

At the end nothing is deleted: in an update, the next process takes the slices over as they are, and pods that are
scheduled meanwhile wait for it. If none comes, the kubelet deletes them 30 s after its last connection to the driver.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from aosp_plugin.framework.aio import complete_unless, wait_any
from aosp_plugin.framework.apiserver.protocol import (
    NODES,
    RESOURCE_API,
    RESOURCE_SLICES,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    NotFoundError,
    Request,
    object_path,
)
from aosp_plugin.framework.dra.interfaces import NULL_DRA_OBSERVER, DraObserver
from aosp_plugin.framework.dra.slice_watch import IN_LIFE, SliceTimings, SliceWatch, report, slice_problem
from aosp_plugin.framework.dra.slices import (
    TAINTS_FIELD,
    Identity,
    differences,
    has_taint,
    replacement,
    stored_slice,
    taint_probe,
    wanted_slices,
)
from aosp_plugin.framework.timings import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from aosp_plugin.framework.apiserver.client import ApiClient
    from aosp_plugin.framework.dra.slices import Attributes, Json, StoredSlice, WantedSlices
    from aosp_plugin.framework.inventory import Inventory

LOG = logging.getLogger(__name__)

PARALLEL = 8
"""Requests at a time: what a kubelet has deleted is soon back, and the API server's limits per client are kept."""

QUIET = 0.01
"""Seconds from a reason to compare to the comparison: reasons come together."""

LONGEST_PAUSE = 15.0
"""Seconds; the upper limit of the pauses after failures and repairs in a row, unless the server asks for more."""

TAINTS_KNOWN = 3600.0
"""Seconds for which it is known whether the server keeps taints: a gate changes when API servers restart, which ends
the watch, or may not."""


class _Metadata(msgspec.Struct):
    uid: Annotated[str, msgspec.Meta(min_length=1)]


class _Node(msgspec.Struct):
    metadata: _Metadata


class SlicePublisher:
    """Keeps the ResourceSlices of one driver on one node as the inventory is. For one event loop."""

    def __init__(
        self,
        api: ApiClient,
        driver: str,
        node_name: str,
        inventory: Inventory,
        attributes: Attributes,
        stop: asyncio.Event,
        observer: DraObserver = NULL_DRA_OBSERVER,
        *,
        timings: SliceTimings = IN_LIFE,
        rng: random.Random | None = None,
    ) -> None:
        """``attributes`` is ``Backend.attributes``; ``stop`` ends ``run``."""
        self._api = api
        self._driver = driver
        self._node_name = node_name
        self._inventory = inventory
        self._attributes = attributes
        self._stop = stop
        self._observer = observer
        self._timings = timings
        self._rng = rng or random.Random()  # noqa: S311 - spreads the load
        self._selector = f"spec.nodeName={node_name},spec.driver={driver}"
        self._watch = SliceWatch(api, self._selector, timings, self._rng)
        self._reading, self._listing, self._deletion, self._omission = (slice_problem() for _ in range(4))
        self._due = asyncio.Event()
        self._withheld = ""
        self._revision = 0
        self._node_due = True
        self._node_uid = ""
        self._keeps_taints: bool | None = None
        self._taints_due = 0.0
        self._wanted: Mapping[str, Json] | None = None
        self._confirmed: frozenset[str] = frozenset()
        self._damage: dict[str, Literal["deleted", "changed", "missing"]] = {}
        self._failures: Mapping[str, ApiError] = {}
        self._accepted: dict[str, str] = {}
        """The versions of slices that the server has not stored as they were sent, which has to do."""
        self._reported = (0, 0)
        self._logged: frozenset[str] = frozenset()

    @property
    def confirmed(self) -> bool:
        """Whether the API server has confirmed every slice since its last change. May be read in any thread."""
        wanted = self._wanted
        return wanted is not None and len(self._confirmed) == len(wanted)

    @property
    def counts(self) -> tuple[int, int]:
        """The number of slices that should exist, and of those that are confirmed. May be read in any thread."""
        return len(self._wanted or {}), len(self._confirmed)

    @property
    def problem(self) -> str:
        """Why slices may be missing, outdated or incomplete; empty if none is known. May be read in any thread."""
        failures = list(self._failures.values())
        more = f" (and {len(failures) - 1} more slices)" if len(failures) > 1 else ""
        texts = [f"no devices are published: {self._withheld}"] if self._withheld else []
        problems = (self._reading, self._listing, self._watch.problem, self._deletion, self._omission)
        texts += [
            *[problem.text for problem in problems if problem.text],
            *[f"{error}{more}" for error in failures[:1]],
        ]
        unconfirmed = "" if self.confirmed else "the API server has not confirmed all ResourceSlices yet"
        return "; ".join(texts) or unconfirmed

    def check(self) -> None:
        """Compare everything with the API server soon, because a kubelet may have started."""
        self._node_due = True
        self._due.set()

    def withhold(self, reason: str) -> None:
        """Publish one slice without devices for this reason; with an empty reason, publish the devices again."""
        if reason != self._withheld:
            LOG.info("devices of the DRA driver are withheld or published again", extra={"reason": reason})
            self._withheld = reason
            self._due.set()

    async def run(self) -> None:
        """Publish until ``stop`` is set. Errors of the API server are in ``problem``, and never raised."""
        await complete_unless(self._stop, self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run())
            tasks.create_task(self._publish_repeatedly())

    async def _publish_repeatedly(self) -> None:
        backoff = Backoff(self._rng, cap=LONGEST_PAUSE)
        while True:
            self._due.clear()
            errors, repaired = await self._publish()
            newer = self._inventory.superseded(self._revision)
            error = max(errors, key=lambda each: each.retry_after or 0.0, default=None)
            if error is not None and error.retry_after is not None:
                await asyncio.sleep(backoff.pause(error.retry_after))
            elif error is not None or repaired:  # what others do to the slices is no reason to go on earlier
                await wait_any(self._due, newer, timeout=backoff.pause())
            else:
                backoff.succeeded()
                pause = self._timings.relist * self._rng.uniform(0.8, 1.2)
                if not await wait_any(self._due, newer, self._watch.changed, timeout=pause):
                    self._node_due = True
            await asyncio.sleep(QUIET)

    async def _publish(self) -> tuple[Sequence[ApiError], bool]:
        """List, compare and write once; return the failures, and whether another client had changed slices."""
        self._node_due |= self._watch.changed.is_set()
        reconnected, deleted = self._watch.take()
        if reconnected:  # perhaps with an API server of another version
            self._taints_due = 0.0
            self._confirmed -= self._accepted.keys()
            self._accepted.clear()
        errors: list[ApiError] = []
        for read in (self._read_node, self._ask_for_taints):
            try:
                await read()
            except ApiError as error:
                errors.append(error)
        self._plan()
        try:
            stored = await self._list()
        except ApiError as error:
            return [*errors, error], False
        damaged = self._note_damage(stored, "deleted" if deleted else "missing")
        failures = await self._write(stored) if self._wanted is not None else {}
        self._log_failures(failures)
        self._report()
        return [*errors, *failures.values()], damaged

    async def _read_node(self) -> None:
        """Find the UID of the Node, which owns the slices, so that they are deleted with it. Raises ApiError."""
        if self._node_uid and not self._node_due:
            return
        self._node_due = False
        try:
            node = await self._api.get(object_path(NODES, self._node_name), _Node)
        except ApiError as error:
            self._node_due = True
            if isinstance(error, NotFoundError):
                self._node_uid = ""
                report(self._reading, f"there is no Node {self._node_name}: is NODE_NAME the name of this node?")
            else:
                report(self._reading, f"request of the Node failed: {error}")
            raise
        report(self._reading, "")
        self._node_uid = node.metadata.uid

    async def _ask_for_taints(self) -> None:
        """Find out whether the server keeps taints, if a device has one and the last answer is old. Raises ApiError.

        A server without the feature gate DRADeviceTaints (on by default from Kubernetes 1.36) drops them without an
        error, and the unhealthy device would be free for pods until the answer was read. Therefore a creation that is
        only simulated comes first; until its answer, unhealthy devices are omitted.
        """
        unhealthy = self._inventory.snapshot.unhealthy and not self._withheld
        if not self._node_uid or not unhealthy or time.monotonic() < self._taints_due:
            return
        try:
            answer = await self._api.create(RESOURCE_SLICES, taint_probe(self._identity), dry_run=True)
        except ApiError as error:
            if error.transient:
                raise
            # For example, a webhook that does not support dry runs.
            LOG.warning("API server refuses the question whether it keeps taints", extra={"error": str(error)})
            self._learn(keeps_taints=bool(self._keeps_taints))
        else:
            self._learn(keeps_taints=has_taint(answer))

    def _learn(self, *, keeps_taints: bool) -> None:
        self._taints_due = time.monotonic() + TAINTS_KNOWN
        if keeps_taints != self._keeps_taints:
            how = "by taints" if keeps_taints else "by omitting them: the API server drops taints"
            LOG.info("unhealthy devices are published", extra={"how": how})
        self._keeps_taints = keeps_taints

    def _plan(self) -> None:
        """Compute the slices that should exist from what is known now."""
        snapshot = self._inventory.snapshot
        self._revision = snapshot.revision
        before, self._wanted = self._wanted or {}, None
        if snapshot.revision and self._node_uid:
            devices = () if self._withheld else [*snapshot.devices.values()]
            planned = wanted_slices(devices, self._attributes, self._identity, taints=bool(self._keeps_taints))
            self._log_omissions(planned)
            self._wanted = planned.slices
        same = {name for name, wanted in (self._wanted or {}).items() if wanted == before.get(name)}
        self._confirmed &= same
        self._damage = {name: damage for name, damage in self._damage.items() if name in same}
        self._accepted = {name: version for name, version in self._accepted.items() if name in same}
        self._report()

    @property
    def _identity(self) -> Identity:
        return Identity(self._driver, self._node_name, self._node_uid)

    async def _list(self) -> dict[str, StoredSlice]:
        """Return the driver's slices by name. Raises ApiError."""
        try:
            listed = await self._api.list(RESOURCE_SLICES, field_selector=self._selector)
            found = [_parsed("list", item) for item in listed.items]
        except ApiError as error:
            missing = f"the API server does not serve {RESOURCE_API}, which requires Kubernetes 1.34 or newer"
            report(
                self._listing,
                missing if isinstance(error, NotFoundError) else f"list of ResourceSlices failed: {error}",
            )
            raise
        report(self._listing, "")
        # Slices of others must never be touched, even if the server does not apply the selector.
        stored = {each.name: each for each in found if each.belongs_to(self._driver, self._node_name)}
        self._watch.known = {name: each.resource_version for name, each in stored.items()}
        return stored

    def _is_right(self, stored: StoredSlice | None) -> bool:
        """Return whether a slice exists as it should."""
        wanted = None if stored is None or stored.deleting else (self._wanted or {}).get(stored.name)
        if stored is None or wanted is None:
            return False
        return self._accepted.get(stored.name) == stored.resource_version or not differences(wanted, stored)

    def _note_damage(self, stored: Mapping[str, StoredSlice], missing: Literal["deleted", "missing"]) -> bool:
        """Note which confirmed slices are no longer as they were; return whether there are any."""
        damaged = sorted(name for name in self._confirmed if not self._is_right(stored.get(name)))
        if not damaged:
            return False
        self._confirmed -= set(damaged)
        for name in damaged:
            self._damage[name] = "changed" if name in stored else missing
        client = stored[damaged[0]].manager if damaged[0] in stored else ""
        extra = {"reason": self._damage[damaged[0]], "slices": len(damaged), "slice": damaged[0], "client": client}
        LOG.warning("ResourceSlices were deleted or changed, repairing", extra=extra)
        return True

    async def _write(self, stored: dict[str, StoredSlice]) -> Mapping[str, ApiError]:
        """Write what differs; return the failures by name. Obsolete slices go first: no pool may have two slices."""
        wanted = self._wanted or {}
        stuck = [name for name, each in stored.items() if each.deleting and name in wanted]
        problem = f"the ResourceSlice {stuck[0]} is being deleted, but its finalizers remain" if stuck else ""
        report(self._deletion, problem)
        pools = {name: each["spec"]["pool"]["name"] for name, each in wanted.items()}  # which cannot be changed
        obsolete = [each for each in stored.values() if not each.deleting and each.pool != pools.get(each.name)]
        failures = await _each([each.name for each in obsolete], lambda name: self._delete(stored[name]))
        for name in {each.name for each in obsolete} - failures.keys():
            del stored[name]
        for name in wanted:
            if self._is_right(stored.get(name)):
                self._confirm(name)
        due = wanted.keys() - self._confirmed - failures.keys() - set(stuck)
        return failures | await _each(sorted(due), lambda name: self._store(wanted[name], stored.get(name)))

    async def _delete(self, stored: StoredSlice) -> None:
        """Delete an obsolete slice, unless it has changed. Raises ApiError."""
        path = object_path(RESOURCE_SLICES, stored.name)
        self._watch.known.pop(stored.name, None)
        try:
            await self._api.delete(path, uid=stored.uid, resource_version=stored.resource_version)
        except NotFoundError:
            return
        LOG.info("ResourceSlice deleted", extra={"slice": stored.name})

    async def _store(self, wanted: Json, stored: StoredSlice | None) -> None:
        """Create or update a slice, and compare the answer. Raises ApiError."""
        name = wanted["metadata"]["name"]
        if stored is not None:
            path = object_path(RESOURCE_SLICES, name)
            answer = _parsed("update", await self._api.update(path, replacement(wanted, stored)))
        else:
            try:
                answer = _parsed("create", await self._api.create(RESOURCE_SLICES, wanted))
            except ConflictError as error:
                text = f"{error.message}; unless it was just created, the ResourceSlice is of another driver or node"
                raise ConflictError(Request("create", RESOURCE_SLICES), text, status=error.status) from error
        LOG.debug("ResourceSlice written", extra={"slice": name})
        self._watch.known[name] = answer.resource_version
        fields = differences(wanted, answer)
        if TAINTS_FIELD in fields and any("taints" in device for device in wanted["spec"]["devices"]):
            self._learn(keeps_taints=False)
            self._due.set()  # go without taints
            return
        if fields:
            self._accepted[name] = answer.resource_version
            if not fields <= self._logged:
                self._logged |= fields
                LOG.warning("API server changes fields of ResourceSlices", extra={"fields": ",".join(sorted(fields))})
        self._confirm(name)

    def _confirm(self, name: str) -> None:
        self._confirmed |= {name}
        if damage := self._damage.pop(name, None):
            self._observer.slices_repaired(damage)

    def _log_failures(self, failures: Mapping[str, ApiError]) -> None:
        """Log failures; the same error of several slices, or again and again, is logged once."""
        known = {(type(error), error.message) for error in self._failures.values()}
        for name, error in failures.items():
            if (type(error), error.message) not in known:
                known.add((type(error), error.message))
                LOG.warning("ResourceSlice cannot be written, retrying", extra={"slice": name, "error": str(error)})
        if self._failures and not failures:
            LOG.info("ResourceSlices can be written again")
        self._failures = failures

    def _log_omissions(self, planned: WantedSlices) -> None:
        """Log each new reason why a device or an attribute is not published."""
        device, reason = next(iter(planned.left_out.items()), ("", ""))
        text = f"{len(planned.left_out)} devices are in no ResourceSlice, such as {device}: {reason}"
        report(self._omission, text if device else "")
        for problem in planned.attribute_problems.keys() - self._logged:
            device = planned.attribute_problems[problem]
            LOG.warning("attribute of devices is not published", extra={"reason": problem, "device": device})
        self._logged |= planned.attribute_problems.keys()

    def _report(self) -> None:
        counts = self.counts
        if counts != self._reported:
            self._reported = counts
            self._observer.slices(*counts)
            if self.confirmed:
                devices = sum(len(wanted["spec"].get("devices", [])) for wanted in (self._wanted or {}).values())
                LOG.info("ResourceSlices published", extra={"slices": counts[0], "devices": devices})


async def _each(names: Collection[str], write: Callable[[str], Awaitable[None]]) -> dict[str, ApiError]:
    """Write slices, several at the same time; return the failures by name. None holds up another one."""
    limit = asyncio.Semaphore(PARALLEL)
    failures: dict[str, ApiError] = {}

    async def write_one(name: str) -> None:
        async with limit:
            try:
                await write(name)
            except ApiError as error:
                failures[name] = error

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(write_one(name))
    return failures


def _parsed(verb: str, item: Any) -> StoredSlice:
    """Return a slice. Raises ApiUnavailableError if it is none."""
    try:
        return stored_slice(item)
    except ValueError as error:
        raise ApiUnavailableError(Request(verb, RESOURCE_SLICES), str(error)) from error
