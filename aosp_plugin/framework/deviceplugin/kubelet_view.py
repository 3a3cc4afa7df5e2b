"""Compares the devices that the kubelet has with those that the plugins published.

A kubelet may have lost a plugin although the plugin's stream is open and its socket is in place, see ``other_plugins``.
Only the kubelet knows. It is therefore asked how many healthy devices it has (podresources GetAllocatableResources), at
intervals, and after each registration. If it has fewer than published in two rounds in a row, the plugin registers
again, but not more often than every ``Timings.view_pause``. Kubelets 1.21 and 1.22, in which the call is alpha, count
unhealthy devices too (kubernetes issue 104122): only ``other_plugins`` detects a loss there.

Where the kubelet does not answer, because it is too old or its socket is not mounted, nothing is compared: a plugin
then counts as registered while the kubelet's stream is open, and ``Confirmation.unknown`` has the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aosp_plugin.framework.observer import NULL_OBSERVER, LastingProblem, Observer, working_for
from aosp_plugin.framework.podresources_client import PodResources
from aosp_plugin.framework.registration import Loss
from aosp_plugin.framework.timings import CLOCK, DEFAULT, Clock, Timings

if TYPE_CHECKING:
    from aosp_plugin.framework.deviceplugin.plugin import DevicePlugin

LOG = logging.getLogger(__name__)

BAD_ROUNDS = 2
"""Rounds in a row with fewer devices than published after which the kubelet counts as wrong."""


class Confirmation:
    """What the kubelet has of one plugin's devices. Written in the event loop; the attributes are for any thread."""

    def __init__(self, observer: Observer = NULL_OBSERVER) -> None:
        self._observer = observer
        self._bad_rounds = 0
        self._attempted = float("-inf")
        self.allocatable: int | None = None
        """Number of healthy devices that the kubelet has; None if it is unknown."""
        self.published = 0
        """Number of healthy devices that the plugin had published at that time."""
        self.unknown = "the kubelet has not been asked yet"
        """Why the kubelet's number is unknown; empty if it is known."""
        self.problem = ""
        """That the kubelet has fewer devices than published; empty if it has not, or if that is unknown."""

    def __str__(self) -> str:
        """Return the numbers in a few words, for the readiness probe."""
        if self.unknown:
            return f"the kubelet's number of devices is unknown: {self.unknown}"
        return f"{self.allocatable} of {self.published} healthy devices allocatable"

    @property
    def in_doubt(self) -> bool:
        """Whether the next round follows sooner than usual."""
        return bool(self._bad_rounds or self.problem)

    def unavailable(self, reason: str) -> None:
        """Record why it is unknown what the kubelet has."""
        self.allocatable, self.unknown, self.problem, self._bad_rounds = None, reason, "", 0
        self._observer.confirmed(None)

    def record(self, allocatable: int, published: int) -> None:
        """Record the numbers of healthy devices that the kubelet has, and that the plugin published."""
        self.allocatable, self.published, self.unknown = allocatable, published, ""
        self._observer.confirmed(allocatable)

    def compare(self, allocatable: int, published: int, now: float, timings: Timings = DEFAULT) -> bool:
        """Record and compare these numbers; return whether to register again.

        ``now`` is a monotonic time in seconds.
        """
        self.record(allocatable, published)
        if allocatable >= published:
            if self.problem:
                LOG.info("kubelet has all devices again", extra={"allocatable": allocatable, "published": published})
            self.problem, self._bad_rounds = "", 0
            return False
        self._bad_rounds += 1
        if self._bad_rounds < BAD_ROUNDS:
            return False
        if not self.problem:
            extra = {"allocatable": allocatable, "published": published}
            LOG.warning("kubelet has fewer devices than published", extra=extra)
        self.problem = f"the kubelet has {allocatable} of {published} healthy devices"
        due = self._attempted + timings.view_pause
        if now < due:
            self.problem += f", next registration in {due - now:.0f} s"
            return False
        self._attempted, self._bad_rounds = now, 0
        return True


class KubeletView:
    """Keeps the confirmations of the plugins of one process current. For one event loop."""

    def __init__(
        self,
        plugins: Sequence[DevicePlugin],
        pod_resources: PodResources,
        timings: Timings = DEFAULT,
        clock: Clock = CLOCK,
    ) -> None:
        """Ask ``pod_resources`` for the devices of ``plugins``."""
        self._plugins = plugins
        self._pod_resources = pod_resources
        self._timings = timings
        self._clock = clock
        self._failure = LastingProblem(
            LOG, "devices of the kubelet are unknown", "devices of the kubelet are known again"
        )

    async def run(self) -> None:
        """Ask the kubelet at intervals, and after each registration, until cancelled; with no plugin, not at all."""
        due = [plugin.view_due for plugin in self._plugins]
        while due:
            in_doubt = await self._round()
            timeout = self._timings.view_recheck if in_doubt else self._timings.view_interval
            if await self._clock.wait(*due, timeout=timeout):
                for event in due:
                    event.clear()
                await self._clock.sleep(self._timings.view_after_registration - self._timings.view_settle)

    async def _round(self) -> bool:
        """Ask the kubelet once, and compare its answer with the devices of each plugin.

        The comparison does not count if the devices changed, or the plugin registered, during the round. There is none
        if the kubelet has the devices of a plugin that registered later. Return whether the next round follows soon.
        """
        before = list(map(_state, self._plugins))
        await self._clock.sleep(self._timings.view_settle)
        answer = await self._pod_resources.allocatable()
        in_doubt = False
        for plugin, state in zip(self._plugins, before, strict=True):
            confirmation = plugin.confirmation
            if answer.problem:
                confirmation.unavailable(answer.problem)
                continue
            allocatable, published = answer.devices[plugin.resource_name], plugin.inventory.snapshot.healthy
            if plugin.overridden:
                confirmation.unavailable("it has those of a plugin that registered later")
                continue
            if not plugin.endpoint or _state(plugin) != state:
                confirmation.record(allocatable, published)
                in_doubt |= bool(plugin.endpoint)
                continue
            with working_for(plugin.resource_name):
                if confirmation.compare(allocatable, published, self._clock(), self._timings):
                    plugin.reregister(Loss.FEWER_DEVICES)
            in_doubt |= confirmation.in_doubt
        if not answer.problem:
            self._failure.set("")
        elif any(plugin.endpoint for plugin in self._plugins):  # otherwise, the kubelet may be down
            self._failure.set(answer.problem, reason=answer.problem)
        return in_doubt


def _state(plugin: DevicePlugin) -> tuple[str, int]:
    """Return the registration and the devices of a plugin."""
    return plugin.endpoint, plugin.inventory.snapshot.revision
