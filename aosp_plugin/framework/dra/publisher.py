"""Publishes the devices as ResourceSlices: lists the slices, compares them with the devices, writes the difference.

The publisher does so when the devices change, when a watch shows a change of the slices, when a timer is due, and again
after every failure and repair.

Every kubelet that starts deletes all slices of its node, which has no devices until they are written again
(pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go). The watch exists to notice this at once.

The slices stay when the process ends: in an update, the next process takes them over, and pods that are scheduled
meanwhile wait for it. Without a next process, the kubelet deletes them 30 s after its last connection to the driver.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from aosp_plugin.framework import conditions as kinds
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.protocol import (
    NODES,
    RESOURCE_API,
    RESOURCE_SLICES,
    ApiError,
    ConflictError,
    NotFoundError,
    Request,
    StoredObject,
    object_path,
)
from aosp_plugin.framework.conditions import Condition
from aosp_plugin.framework.dra.slices import (
    AttributeValue,
    Identity,
    Json,
    StoredSlice,
    has_taints,
    replacement,
    stored_slice,
    taint_probe,
    wanted_slices,
)
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import Backoff, wait_any

LOG = logging.getLogger(__name__)

ANY_VERSION = "0"
"""The resourceVersion of a watch that begins with the server's cache. The publisher remembers no version, which could
be too old, or too new for a server whose data was restored from a backup."""


class SlicePublisher:
    """Keeps the ResourceSlices of one driver on one node equal to the inventory. For one event loop."""

    def __init__(
        self,
        api: ApiClient,
        driver: str,
        node_name: str,
        inventory: Inventory,
        attributes: Callable[[Any, str], Mapping[str, AttributeValue]],
        *,
        resource: str,
        runtime: Runtime,
        rng: random.Random | None = None,
    ) -> None:
        """``attributes`` is ``Backend.attributes``; ``resource`` is the label of ``metrics``."""
        self._api = api
        self._inventory = inventory
        self._attributes = attributes
        self._resource = resource
        self._conditions = runtime.conditions
        self._metrics = runtime.metrics
        self._timings = runtime.timings
        self._rng = rng or random.Random()  # noqa: S311 - spreads the load
        self._selector = f"spec.nodeName={node_name},spec.driver={driver}"
        self._due = asyncio.Event()
        self._slices_changed = asyncio.Event()
        self._withheld = ""
        self._in_doubt = False
        self._revision = 0
        self._identity = Identity(driver, node_name, "")
        self._keeps_taints: bool | None = None
        self._taints_asked = False
        self._fields_changed = False
        """Whether the server has stored a slice with other fields than were sent, which is logged once."""
        self._wanted: Mapping[str, Json] | None = None
        self._confirmed: dict[str, str] = {}
        """The versions of the wanted slices that the server has confirmed, by name."""
        self._left_out: Sequence[str] = ()
        self._errors: Sequence[ApiError] = ()
        self._watch_error: ApiError | None = None
        self._reported = (0, 0)

    @property
    def confirmed(self) -> bool:
        """Whether the API server has confirmed every slice since its last change. May be read in any thread."""
        wanted = self._wanted
        return wanted is not None and not self._in_doubt and len(self._confirmed) == len(wanted)

    @property
    def counts(self) -> tuple[int, int]:
        """The number of slices that should exist, and of those that are confirmed. May be read in any thread."""
        return len(self._wanted or {}), 0 if self._in_doubt else len(self._confirmed)

    def check(self) -> None:
        """Compare everything with the API server soon."""
        self._due.set()

    def doubt(self) -> None:
        """Compare everything because a kubelet has started: until then, no slice counts as confirmed."""
        self._in_doubt = True
        self._report()
        self._due.set()

    def withhold(self, reason: str) -> None:
        """Publish one slice without devices for this reason; with an empty reason, publish the devices again."""
        if reason != self._withheld:
            self._withheld = reason
            self._report()
            self._due.set()

    async def run(self) -> None:
        """Publish until cancelled. Errors of the API server are conditions, and never raised."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._publish_repeatedly())

    async def _watch(self) -> None:
        """Wake the publisher when a slice may have changed; ends only when it is cancelled."""
        backoff, failures = Backoff(self._rng), 0

        def opened() -> None:
            self._taints_asked = False  # the next API server may have another version
            self._slices_changed.set()

        while True:
            watch = self._api.watch(
                RESOURCE_SLICES, field_selector=self._selector, resource_version=ANY_VERSION, opened=opened
            )
            try:
                async with contextlib.aclosing(watch) as events:
                    async for event in events:
                        backoff.succeeded()
                        failures, self._watch_error = 0, None
                        known = self._confirmed.get(event.object["metadata"].get("name", ""))
                        is_new = event.type == "DELETED" or event.resource_version != known
                        if event.type != "BOOKMARK" and is_new:
                            self._slices_changed.set()
            except ApiError as error:
                failures += 1
                if failures > 1:  # a single failure is the end of an API server
                    self._watch_error = error
                    self._slices_changed.set()
                await asyncio.sleep(backoff.pause(error.retry_after))
            await asyncio.sleep(self._rng.uniform(*self._timings.watch_pause))

    async def _publish_repeatedly(self) -> None:
        backoff, fight = (Backoff(self._rng, cap=self._timings.longest_pause) for _ in range(2))
        while True:
            self._due.clear()
            self._slices_changed.clear()
            is_repaired = await self._publish()
            newer = self._inventory.superseded(self._revision)
            if self._errors:
                asked = max((error.retry_after or 0.0 for error in self._errors), default=0.0)
                pause = backoff.pause(asked)
                if asked:  # the server has asked for this pause: a change of the devices must not shorten it
                    await asyncio.sleep(pause)
                else:
                    await wait_any(self._due, newer, timeout=pause)
            elif is_repaired:  # further changes of the slices by others must not shorten this pause
                backoff.succeeded()
                await wait_any(self._due, newer, timeout=fight.pause())
            else:
                backoff.succeeded()
                fight.succeeded()
                pause = self._timings.slice_relist * self._rng.uniform(0.8, 1.2)
                await wait_any(self._due, newer, self._slices_changed, timeout=pause)
            await asyncio.sleep(self._timings.quiet)  # several changes often come together

    async def _publish(self) -> bool:
        """List, compare and write once; return whether another client had changed slices. Failures are noted."""
        errors: list[ApiError] = []
        is_repaired = False
        for read in (self._read_node, self._ask_for_taints):
            try:
                await read()
            except ApiError as error:
                errors.append(error)
        self._plan()
        try:
            stored = await self._list()
            self._in_doubt &= self._due.is_set()  # a kubelet may have started since the request
            is_repaired = self._note_damage(stored)
            errors += await self._write(stored)
        except ApiError as error:
            errors.append(error)
        self._errors = errors
        self._report()
        return is_repaired

    async def _read_node(self) -> None:
        """Find the UID of the Node, which owns the slices, so that they are deleted with it. Raises ApiError."""
        name = self._identity.node_name
        try:
            uid = (await self._api.get(object_path(NODES, name), StoredObject)).metadata.uid
        except NotFoundError as error:
            self._identity = self._identity._replace(node_uid="")
            text = f"there is no Node {name}: is NODE_NAME the name of this node?"
            raise NotFoundError(Request("get", NODES), text, status=error.status) from error
        self._identity = self._identity._replace(node_uid=uid)

    async def _ask_for_taints(self) -> None:
        """Find out whether the server keeps taints, once for each watch, if a device has one. Raises ApiError.

        A server without the feature gate DRADeviceTaints (on by default from Kubernetes 1.36) drops taints without an
        error, so that pods would get unhealthy devices. Therefore the publisher first simulates the creation of a slice
        with a taint (dry run), and omits unhealthy devices until the answer.
        """
        unhealthy = self._inventory.snapshot.unhealthy and not self._withheld
        if self._taints_asked or not self._identity.node_uid or not unhealthy:
            return
        self._taints_asked = True
        try:
            keeps_taints = has_taints(await self._create(taint_probe(self._identity), dry_run=True))
        except ApiError as error:
            if error.transient or isinstance(error, ConflictError):
                self._taints_asked = False
                raise
            # For example, a webhook that does not support dry runs.
            LOG.warning("API server refuses the question whether it keeps taints", extra={"error": str(error)})
            keeps_taints = bool(self._keeps_taints)
        self._learn(keeps_taints=keeps_taints)

    def _learn(self, *, keeps_taints: bool) -> None:
        if keeps_taints != self._keeps_taints:
            how = "by taints" if keeps_taints else "by omitting them: the API server drops taints"
            LOG.info("unhealthy devices are published", extra={"how": how})
        self._keeps_taints = keeps_taints

    def _plan(self) -> None:
        """Compute the slices that should exist now."""
        snapshot = self._inventory.snapshot
        self._revision = snapshot.revision
        before, wanted, self._left_out = self._wanted or {}, None, ()
        if snapshot.revision and self._identity.node_uid:
            devices = () if self._withheld else [*snapshot.devices.values()]
            attributes = partial(self._attributes, self._inventory.found)
            planned = wanted_slices(devices, attributes, self._identity, taints=bool(self._keeps_taints))
            wanted, self._left_out = planned
        self._wanted = wanted  # a single assignment: other threads read the number
        now = wanted or {}
        self._confirmed = {name: it for name, it in self._confirmed.items() if now.get(name) == before[name]}
        self._report()

    async def _list(self) -> dict[str, StoredSlice]:
        """Return the driver's slices by name. Raises ApiError."""
        try:
            listed = await self._api.list(RESOURCE_SLICES, field_selector=self._selector)
        except NotFoundError as error:
            text = f"the API server does not serve {RESOURCE_API}, which requires Kubernetes 1.34 or newer"
            raise NotFoundError(Request("list", RESOURCE_SLICES), text, status=error.status) from error
        found = [stored_slice("list", item) for item in listed]
        # Slices of others must never be touched, even if the server does not apply the selector.
        return {each.name: each for each in found if self._is_own(each)}

    def _is_own(self, stored: StoredSlice) -> bool:
        identity = self._identity
        return (stored.spec.get("driver"), stored.spec.get("nodeName")) == (identity.driver, identity.node_name)

    def _is_right(self, stored: StoredSlice) -> bool:
        """Return whether a slice is as it should be."""
        wanted = (self._wanted or {}).get(stored.name)
        if wanted is None:
            return False
        return self._confirmed.get(stored.name) == stored.resource_version or stored.is_as(wanted)

    def _note_damage(self, stored: Mapping[str, StoredSlice]) -> bool:
        """Note the confirmed slices that were changed or deleted; return whether there are any."""
        right = {each.name for each in stored.values() if self._is_right(each)}
        damaged = sorted(self._confirmed.keys() - right)
        for name in damaged:
            del self._confirmed[name]
            reason = "changed" if name in stored else "deleted"
            self._metrics.slice_repairs.labels(self._resource, reason).inc()
        if damaged:
            extra = {"slices": len(damaged), "slice": damaged[0]}
            LOG.warning("ResourceSlices were deleted or changed, repairing", extra=extra)
            self._report()
        return bool(damaged)

    async def _write(self, stored: dict[str, StoredSlice]) -> Sequence[ApiError]:
        """Write the differences; return the failures. Obsolete slices go first: no pool may have two slices."""
        if self._wanted is None:
            return []
        wanted = self._wanted
        pools = {name: each["spec"]["pool"]["name"] for name, each in wanted.items()}  # which cannot be changed
        obsolete = [each for each in stored.values() if each.pool != pools.get(each.name)]
        errors = await _errors(self._delete(each, stored) for each in obsolete)
        self._confirmed.update({each.name: each.resource_version for each in stored.values() if self._is_right(each)})
        due = [each for name, each in wanted.items() if name not in self._confirmed]
        return errors + await _errors(self._store(each, stored.get(each["metadata"]["name"])) for each in due)

    async def _delete(self, obsolete: StoredSlice, stored: dict[str, StoredSlice]) -> None:
        """Delete an obsolete slice, also from ``stored``, unless it has changed. Raises ApiError."""
        path = object_path(RESOURCE_SLICES, obsolete.name)
        with contextlib.suppress(NotFoundError):
            await self._api.delete(path, uid=obsolete.metadata["uid"], resource_version=obsolete.resource_version)
            LOG.info("ResourceSlice deleted", extra={"slice": obsolete.name})
        del stored[obsolete.name]

    async def _store(self, wanted: Json, stored: StoredSlice | None) -> None:
        """Create or update a slice, and compare the answer. Raises ApiError."""
        name = wanted["metadata"]["name"]
        if stored is None:
            answer = stored_slice("create", await self._create(wanted))
        else:
            path = object_path(RESOURCE_SLICES, name)
            answer = stored_slice("update", await self._api.update(path, replacement(wanted, stored)))
        LOG.debug("ResourceSlice written", extra={"slice": name})
        if not answer.is_as(wanted):
            if has_taints(wanted) and not has_taints({"spec": answer.spec}):
                self._learn(keeps_taints=False)
                self._due.set()  # publish again without taints
                return
            if not self._fields_changed:
                LOG.warning("API server changes fields of ResourceSlices", extra={"slice": name})
            self._fields_changed = True
        self._confirmed[name] = answer.resource_version

    async def _create(self, wanted: Json, *, dry_run: bool = False) -> Any:
        """Create a slice, and return the answer. Raises ApiError.

        If a slice of another node or driver has the name, the next attempt uses other names: this driver may neither
        change nor delete it.
        """
        try:
            return await self._api.create(RESOURCE_SLICES, wanted, dry_run=dry_run)
        except ConflictError:
            name = wanted["metadata"]["name"]
            if not self._is_own(stored_slice("get", await self._api.get(object_path(RESOURCE_SLICES, name)))):
                LOG.warning("ResourceSlice of another client has the name, using other names", extra={"slice": name})
                self._identity = self._identity._replace(variant=f"x{self._rng.getrandbits(32):08x}")
            raise

    def _found(self) -> Iterator[Condition]:
        """Yield the conditions because of which slices may be missing, outdated or incomplete.

        A slow or silent API server is not such a condition while all slices are confirmed.
        """
        if self._withheld:
            text = f"no devices are published: {self._withheld}"
            yield Condition(kinds.WITHHELD, text, fields={"reason": self._withheld})
        if self._left_out:
            ids = self._left_out
            text = f"{len(ids)} devices are in no ResourceSlice, such as {ids[0]}: its block is full"
            yield Condition(kinds.SLICES_FULL, text, fields={"problem": text})
        errors, failing = self._errors, kinds.API_SERVER_FAILING if self.confirmed else kinds.SLICES_FAILING
        if errors:
            text = f"{errors[0]}{f' (and {len(errors) - 1} more errors)' if len(errors) > 1 else ''}"
            yield Condition(failing, text, fields={"problem": text})
        elif self._watch_error is not None:
            text = f"watch of ResourceSlices failed: {self._watch_error}"
            yield Condition(failing, text, fields={"problem": text})
        elif not self.confirmed:
            yield Condition(kinds.SLICES_MISSING, "the API server has not confirmed all ResourceSlices yet")

    def _report(self) -> None:
        self._conditions.replace("slices", self._resource, self._found())
        counts = self.counts
        if counts != self._reported:
            self._reported = counts
            self._metrics.slices_wanted.labels(self._resource).set(counts[0])
            self._metrics.slices_confirmed.labels(self._resource).set(counts[1])
            if self.confirmed:
                devices = sum(len(wanted["spec"].get("devices", [])) for wanted in (self._wanted or {}).values())
                LOG.info("ResourceSlices published", extra={"slices": counts[0], "devices": devices})


async def _errors(requests: Iterable[Coroutine[None, None, None]]) -> list[ApiError]:
    """Make requests concurrently, as far as the client allows, and return the failures."""

    async def failure(request: Coroutine[None, None, None]) -> ApiError | None:
        try:
            await request
        except ApiError as error:
            return error
        return None

    return [error for error in await asyncio.gather(*map(failure, requests)) if error is not None]
