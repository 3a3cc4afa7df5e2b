"""Publishes the devices as ResourceSlices: creates, watches, and repairs them at once.

Every kubelet that starts deletes all slices of its node, and slices that are not written again cost the node its
devices (pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go). Therefore a deletion is answered by a creation as soon as the
watch shows it, and a list compares everything from time to time.

At the end nothing is deleted: in an update, the next process takes the slices over as they are, and pods that are
scheduled meanwhile wait for it. If none comes, the kubelet deletes them 30 s after its last connection to the driver.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from aosp_plugin.framework.aio import complete_unless, wait_any
from aosp_plugin.framework.dra.lasting_problem import LastingProblem
from aosp_plugin.framework.dra.node_owner import NodeOwner
from aosp_plugin.framework.dra.observer import NULL_DRA_OBSERVER, DraObserver
from aosp_plugin.framework.dra.slice_follower import IN_LIFE, FollowTimings, SliceFollower
from aosp_plugin.framework.dra.slice_writer import SliceWriter
from aosp_plugin.framework.dra.slices import Identity, wanted_slices
from aosp_plugin.framework.dra.taint_support import TaintSupport

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from aosp_plugin.framework.apiserver.client import ApiClient
    from aosp_plugin.framework.devices import Device
    from aosp_plugin.framework.dra.mirror import Change
    from aosp_plugin.framework.dra.slices import Attributes, WantedSlices
    from aosp_plugin.framework.inventory import Inventory

LOG = logging.getLogger(__name__)

REPLAN = 300.0
"""Seconds after which the slices are computed again without a reason: attributes change without an event."""


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
        timings: FollowTimings = IN_LIFE,
        rng: random.Random | None = None,
    ) -> None:
        """``attributes`` is ``Backend.attributes``; ``stop`` ends ``run``."""
        self._driver = driver
        self._node_name = node_name
        self._inventory = inventory
        self._attributes = attributes
        self._stop = stop
        self._replan = asyncio.Event()
        self._owner = NodeOwner(api, node_name, self._replan.set, rng)
        self._follower = SliceFollower(
            api, driver, node_name, self._handle_change, reconnected=self._handle_reconnection, timings=timings, rng=rng
        )
        self._writer = SliceWriter(
            api,
            driver,
            node_name,
            self._follower.mirror,
            observer,
            lost=self._owner.check,
            taints_dropped=self._handle_dropped_taints,
            rng=rng,
        )
        self._taints = TaintSupport(api, time.monotonic, rng)
        self._withheld = ""
        self._revision = 0
        self._left_out = LastingProblem()
        self._logged_attributes: frozenset[str] = frozenset()

    @property
    def confirmed(self) -> bool:
        """Whether the API server has confirmed every slice since its last change. May be read in any thread."""
        return self._writer.confirmed

    @property
    def counts(self) -> tuple[int, int]:
        """The number of slices that should exist, and of those that are confirmed. May be read in any thread."""
        return self._writer.counts

    @property
    def problem(self) -> str:
        """Why slices may be missing, outdated or incomplete; empty if none is known. May be read in any thread."""
        withheld = f"no devices are published: {self._withheld}" if self._withheld else ""
        texts = [withheld, self._owner.problem, self._follower.problem, self._writer.problem, self._left_out.text]
        unconfirmed = "" if self.confirmed else "the API server has not confirmed all ResourceSlices yet"
        return "; ".join(filter(None, texts)) or unconfirmed

    def check(self) -> None:
        """Compare everything with the API server soon, because a kubelet may have started."""
        self._follower.check()
        self._owner.check()

    def withhold(self, reason: str) -> None:
        """Publish one slice without devices for this reason; with an empty reason, publish the devices again."""
        if reason != self._withheld:
            LOG.info("devices of the DRA driver are withheld or published again", extra={"reason": reason})
            self._withheld = reason
            self._replan.set()

    async def run(self) -> None:
        """Publish until ``stop`` is set. Errors of the API server are in ``problem``, and never raised."""
        await complete_unless(self._stop, self._run())

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for work in (self._owner.run(), self._follower.run(), self._writer.run(), self._plan_repeatedly()):
                tasks.create_task(work)

    async def _plan_repeatedly(self) -> None:
        while True:
            self._replan.clear()
            pause = REPLAN
            if self._owner.uid and self._devices_have_taints():
                if self._taints.due <= time.monotonic():
                    await self._taints.learn(self._identity)
                pause = min(pause, max(self._taints.due - time.monotonic(), 0.0))
            self._plan()
            await wait_any(self._replan, self._inventory.superseded(self._revision), timeout=pause)

    def _plan(self) -> None:
        """Compute the slices that should exist from what is known now."""
        snapshot = self._inventory.snapshot
        self._revision = snapshot.revision
        if not snapshot.revision or not self._owner.uid:
            self._writer.want(None)
            return
        wanted = wanted_slices(self._devices, self._attributes, self._identity, taints=self._taints.kept)
        self._log(wanted)
        self._writer.want(wanted.slices)

    @property
    def _identity(self) -> Identity:
        return Identity(self._driver, self._node_name, self._owner.uid)

    @property
    def _devices(self) -> Sequence[Device]:
        return () if self._withheld else self._inventory.snapshot.devices

    def _devices_have_taints(self) -> bool:
        return bool(self._inventory.snapshot.unhealthy) and not self._withheld

    def _handle_change(self, name: str, change: Change) -> None:
        self._writer.changed(name, change)

    def _handle_reconnection(self) -> None:
        self._taints.ask_again()
        self._writer.try_again()
        self._replan.set()

    def _handle_dropped_taints(self) -> None:
        self._taints.dropped()
        self._plan()

    def _log(self, wanted: WantedSlices) -> None:
        """Log each new reason why a device or an attribute is not published."""
        self._report_left_out(wanted.left_out)
        for problem in wanted.attribute_problems.keys() - self._logged_attributes:
            device = wanted.attribute_problems[problem]
            LOG.warning("attribute of devices is not published", extra={"reason": problem, "device": device})
        self._logged_attributes = frozenset(wanted.attribute_problems)

    def _report_left_out(self, left_out: Mapping[str, str]) -> None:
        if not left_out:
            self._left_out.ends()
            return
        device, reason = next(iter(left_out.items()))
        self._left_out.begins(f"{len(left_out)} devices are in no ResourceSlice, such as {device}: {reason}")
