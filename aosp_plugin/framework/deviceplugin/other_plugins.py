"""Other plugins of the same resource on this host, found by their sockets in the kubelet's plugin directory.

Two plugins of one resource override each other, and the end of one may take the devices of the other. Before 1.37, a
kubelet keeps one current plugin per resource, the last one that registered; when that one ends, it marks the devices
unhealthy, although the stream of the remaining plugin stays open (pkg/kubelet/cm/devicemanager/plugin/v1beta1/
handler.go ``runClient``; manager.go ``runEndpoint`` in 1.20). The remaining plugin therefore registers again. It does
so even if it has already sent another list: the kubelet then counts the devices as healthy, but rejects each pod. A
plugin that ends leaves its socket for the earlier one, which may not have seen it run.

A rolling update with maxSurge runs two plugins of a resource on purpose, perhaps with different configurations. The
kubelet calls the plugin that registered later, but takes the list of whichever plugin sent one last. The earlier plugin
is therefore overridden: it sends no more lists, changes nothing on the host, and does not compete for the registration.
The numbers in the names of the sockets decide which is later, so that the plugins always agree; a plugin that the
kubelet has not registered overrides none. When the overridden plugin registers again, it sends lists and changes the
host again: the later plugin may only be registering again, or hang. If the clock was set back between their starts, the
kubelet has the plugin that counts as overridden, until the other one ends.
"""

import math
from collections.abc import Callable

from aosp_plugin.framework.conditions import OVERRIDDEN, SECOND_PLUGIN, Condition
from aosp_plugin.framework.deviceplugin.supervisor import Supervisor
from aosp_plugin.framework.registration import Loss
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.sockets import OtherPlugin, creation_time


class OtherPlugins:
    """Keeps track of the other plugins of one resource. For the event loop."""

    def __init__(
        self,
        supervisor: Supervisor,
        resource: str,
        runtime: Runtime,
        *,
        pause_updates: Callable[[bool], None],
        earlier_ended: Callable[[], None],
    ) -> None:
        """Scan the kubelet's directory whenever ``supervisor`` notices a change of it.

        ``pause_updates`` is called with True when a later plugin has taken over kubelet and host, and with False when
        that has gone and the present registration has ended. ``earlier_ended`` is called when an earlier plugin has
        ended: the kubelet may have its list, and it may have changed the host.
        """
        self._supervisor = supervisor
        self._resource = resource
        self._conditions = runtime.conditions
        self._pause_updates = pause_updates
        self._earlier_ended = earlier_ended
        self._count = runtime.metrics.other_plugins.labels(resource)
        self._timings = runtime.timings
        self._clock = runtime.clock
        self._own_endpoint = ""
        """The registration that the last scan was made for."""
        self.found: tuple[OtherPlugin, ...] = ()
        self._has_followers = self.overridden = False
        """Whether there are plugins that started later, or sockets of such plugins, and whether one of them has
        registered and taken over. It may have registered just before its end."""
        self._silent = False
        """Whether the plugin sends no lists in its present registration, because a later plugin had taken over."""

    async def run(self) -> None:
        """Scan after each change of the directory, and at intervals while there is another plugin, until cancelled."""
        while True:
            await self._scan()
            # The kubelet writes its checkpoint into the directory with each allocation.
            await self._clock.sleep(min(self._timings.retry, self._timings.recheck))
            is_due = self._has_followers and not (self.overridden and self.found)  # it may end
            timeout = self._timings.retry if is_due else self._timings.recheck if self.found else None
            await self._clock.wait(self._supervisor.directory_changed, timeout=timeout)

    async def _scan(self) -> None:
        self._supervisor.directory_changed.clear()
        own_endpoint = self._supervisor.registered_endpoint
        answer = await self._supervisor.other_plugins()
        if answer is None:
            return
        found, stale = answer
        if own_endpoint != self._supervisor.registered_endpoint:  # they may be later than the former endpoint
            self._supervisor.directory_changed.set()
            return
        before, self.found = self.found, found
        if [other.created for other in found] != [other.created for other in before]:
            self._supervisor.view_due.set()
            self._count.set(len(found))
        # A plugin that registers again changes its socket: it has ended when two scans in a row do not find it.
        own_creation = creation_time(own_endpoint) if own_endpoint else math.inf
        followers = [other for other in (*found, *before) if other.created > own_creation]
        same, self._own_endpoint = own_endpoint == self._own_endpoint, own_endpoint
        ended = same and self._has_followers and not followers
        self._has_followers = bool(followers) or any(creation_time(name) > own_creation for name in stale)
        later = any(other.registered for other in followers)
        self.overridden = later
        self._report()
        was_silent, self._silent = self._silent, later or (same and self._silent)
        if self._silent != was_silent or (later and not same):
            if later:
                self._supervisor.silence()
            self._pause_updates(later)
        if ended:
            self._supervisor.reregister(Loss.LATER_PLUGIN_ENDED)
        elif len(found) < len(before) and not later:
            self._earlier_ended()

    def _report(self) -> None:
        """Report the other plugins, and whether one of them has taken over."""
        conditions = []
        if self.found:
            names = [str(plugin) for plugin in self.found]
            text = f"another plugin of this resource runs on this node: {', '.join(names)}"
            conditions.append(Condition(SECOND_PLUGIN, text, fields={"endpoint": ",".join(names)}))
        if self.overridden:
            conditions.append(Condition(OVERRIDDEN, "a plugin of this resource that registered later has taken over"))
        self._conditions.replace("other plugins", self._resource, conditions)
