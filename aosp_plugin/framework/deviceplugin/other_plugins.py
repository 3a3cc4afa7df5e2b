"""Other plugins of the same resource on this host, found by their sockets in the kubelet's plugin directory.

Two plugins of one resource override each other, and the end of one may take the devices of the other. Before 1.37, a
kubelet keeps one current plugin per resource, the last one that registered; when that one ends, it marks the devices
unhealthy, although the stream of the remaining plugin stays open (pkg/kubelet/cm/devicemanager/plugin/v1beta1/
handler.go ``runClient``; manager.go ``runEndpoint`` in 1.20). The remaining plugin therefore registers again. It does
so even if it has already sent another list: the kubelet then counts the devices as healthy, but rejects each pod.

A rolling update with maxSurge runs two plugins of a resource on purpose, perhaps with different configurations. The
kubelet calls the one that registered later, but takes the list of whichever sent one last. The earlier one is therefore
overridden: it sends no more lists, changes nothing on the host, and does not compete for the registration. The numbers
in the names of the sockets decide, so that two plugins never both consider the other one later; a plugin that the
kubelet has not registered overrides none. If the clock was set back between their starts, the kubelet has the one that
counts as overridden; this ends when the other one does.
"""

import logging
import math
from collections.abc import Callable

from aosp_plugin.framework.deviceplugin.supervisor import Supervisor
from aosp_plugin.framework.observer import NULL_OBSERVER, Observer
from aosp_plugin.framework.registration import Loss
from aosp_plugin.framework.sockets import OtherPlugin, socket_number
from aosp_plugin.framework.timings import CLOCK, DEFAULT, Clock, Timings

LOG = logging.getLogger(__name__)


class OtherPlugins:
    """Keeps track of the other plugins of one resource. For the event loop, except for ``notice``."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        reregister: Callable[[Loss], None],
        override: Callable[[bool], None],
        earlier_ended: Callable[[], None],
        timings: Timings = DEFAULT,
        clock: Clock = CLOCK,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        """Scan the kubelet's directory whenever ``supervisor`` notices a change of it.

        ``reregister`` is called with the reason when the kubelet has lost the plugin; ``override`` with whether there
        is a plugin that registered later, when that changes; ``earlier_ended`` when an earlier plugin has ended, whose
        list the kubelet may have, and which may have changed the host.
        """
        self._supervisor = supervisor
        self._reregister = reregister
        self._override = override
        self._earlier_ended = earlier_ended
        self._observer = observer
        self._timings = timings
        self._clock = clock
        self._own_endpoint = ""
        """The registration that the last scan was made for."""
        self.found: tuple[OtherPlugin, ...] = ()
        self._has_followers = self.overridden = False
        """Whether there are plugins that were started later, and whether one that registered later has taken over. One
        that has ended may have registered just before."""

    @property
    def notice(self) -> str:
        """Which other plugins there are, and whether one has taken over; empty if neither. For any thread."""
        found = self.found
        if not found:
            return "a plugin of this resource that had taken over seems to have ended" if self.overridden else ""
        overridden = ", and has taken over because it registered later" if self.overridden else ""
        return f"another plugin of this resource runs on this node{overridden}: {', '.join(map(str, found))}"

    async def run(self) -> None:
        """Scan after each change of the directory, and at intervals while there is another plugin, until cancelled."""
        while True:
            await self._scan()
            # The kubelet writes its checkpoint into the directory with each allocation.
            await self._clock.sleep(min(self._timings.retry, self._timings.recheck))
            is_due = self._has_followers and not (self.overridden and self.found)  # one registers or has ended
            timeout = self._timings.retry if is_due else self._timings.recheck if self.found else None
            await self._clock.wait(self._supervisor.directory_changed, timeout=timeout)

    async def _scan(self) -> None:
        self._supervisor.directory_changed.clear()
        own_endpoint = self._supervisor.registered_endpoint
        found = await self._supervisor.other_plugins()
        if found is None:
            return
        if own_endpoint != self._supervisor.registered_endpoint:  # found may be later than the previous one only
            self._supervisor.directory_changed.set()
            return
        before, self.found = self.found, found
        if [other.number for other in found] != [other.number for other in before]:
            self._supervisor.view_due.set()
            self._observer.other_plugins(len(found))
            if found:
                LOG.warning("another plugin of the resource is running", extra={"endpoint": ",".join(map(str, found))})
            else:
                LOG.info("no other plugin of the resource is running")
        # A plugin that registers again changes its socket: it counts until two scans in a row do not find it.
        own_number = socket_number(own_endpoint) if own_endpoint else math.inf
        followers = [other for other in (*found, *before) if other.number > own_number]
        same, self._own_endpoint = own_endpoint == self._own_endpoint, own_endpoint
        ended, self._has_followers = same and self._has_followers and not followers, bool(followers)
        later = any(other.registered for other in followers)
        if later != self.overridden:
            self.overridden = later
            if later:
                LOG.info("later plugin of the resource has taken over")
            self._override(later)
        if ended:
            self._reregister(Loss.LATER_PLUGIN_ENDED)
        elif len(found) < len(before) and not later:
            self._earlier_ended()
