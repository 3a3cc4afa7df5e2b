"""What the plugin serves over HTTP: probes, metrics, the state of the node, and the page that shows it.

Which path has what, and what of the running plugins it is made of. How a report looks is ``operate.report``'s matter,
and how it gets to a client ``operate.http``'s.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from aosp_plugin import __version__
from aosp_plugin.daemon import page
from aosp_plugin.daemon.report import NodeStatus, ResourceStatus, report
from aosp_plugin.framework.podresources_client import Allocations, PodResources
from aosp_plugin.framework.service.http import Answer, in_loop, probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aosp_plugin.backend import BinderBackend
    from aosp_plugin.daemon.assembly import ResourceRuntime
    from aosp_plugin.daemon.leaks import Leaks
    from aosp_plugin.framework.events.file_events import FileEvents
    from aosp_plugin.framework.service.http import Route
    from aosp_plugin.framework.service.metrics import Metrics

NODE_VARIABLE = "NODE_NAME"
"""Environment variable with the name of the node: what a container takes for its host's name is the pod's."""

_COMPRESSION = 1
"""gzip's lowest: a report shrinks to a twentieth, and by the highest not to a tenth less, in several times the time."""


def routes(
    served: Sequence[ResourceRuntime],
    files: FileEvents,
    leaks: Callable[[], Mapping[str, Leaks]],
    metrics: Metrics,
    *,
    stuck: Callable[[], str],
    pod_resources_socket: str,
    leak_detection: bool,
) -> dict[str, Route]:
    """Return what answers each path; to be called in the event loop that the plugins run in.

    ``leaks`` returns those of each resource as of the last round. ``stuck`` says from any other thread what is wrong
    with that loop, if something is.
    """
    pod_resources = PodResources(pod_resources_socket, [one.name for one in served])
    look = Look(served, files, leaks, pod_resources, leak_detection=leak_detection)

    async def unready() -> str:
        return _told((one.name, one.plugin.unready) for one in served)

    return {
        **page.routes(),
        "/status": Status(in_loop(look.seen), [one.backend for one in served]).answer,
        "/metrics": _metrics(metrics, look),
        "/healthz": probe(lambda: stuck() or _told((one.name, one.plugin.unhealthy) for one in served)),
        "/readyz": probe(in_loop(unready)),
    }


class Look:
    """What is known of the node, whenever somebody asks."""

    def __init__(
        self,
        served: Sequence[ResourceRuntime],
        files: FileEvents,
        leaks: Callable[[], Mapping[str, Leaks]],
        pod_resources: PodResources,
        *,
        leak_detection: bool,
    ) -> None:
        self._served = served
        self._files = files
        self._leaks = leaks
        self._pod_resources = pod_resources
        self._leak_detection = leak_detection
        self.allocations = Allocations("nobody has asked yet")
        """As of the last time."""

    async def seen(self) -> NodeStatus:
        """Return what is known now."""
        self.allocations = await self._pod_resources.current()
        leaks = self._leaks()
        resources = tuple(
            ResourceStatus(
                one.name,
                one.plugin.inventory.snapshot,
                one.plugin.unready,
                one.plugin.unhealthy,
                leaks.get(one.name),
            )
            for one in self._served
        )
        watching = "polling" if self._files.polling else "inotify"
        return NodeStatus(watching, self.allocations, resources, self._leak_detection)


class Status:
    """``/status``: the report, which is made anew only where something has changed. For any number of threads."""

    def __init__(self, look: Callable[[], NodeStatus], backends: Sequence[BinderBackend]) -> None:
        """``backends`` are those of the resources that ``look`` returns, in their order."""
        self._look = look
        self._backends = backends
        self._node = os.environ.get(NODE_VARIABLE) or os.uname().nodename
        self._started = time.time()
        self._lock = threading.Lock()
        self._told: tuple[object, ...] = ()
        self._answer: Answer | None = None
        self._made = 0

    def answer(self) -> Answer:
        """Return the report as JSON. Raises TimeoutError where the event loop is stuck."""
        seen = self._look()
        # Not the snapshots themselves: that of ten thousand devices would be kept for long after the last question.
        resources = [one._replace(snapshot=one.snapshot.revision) for one in seen.resources]  # type: ignore[arg-type]
        told = (seen.watching, seen.allocations, resources)
        with self._lock:
            if self._answer is None or told != self._told:
                self._told = told
                self._answer = self._made_of(seen)
            return self._answer

    def _made_of(self, seen: NodeStatus) -> Answer:
        nodes = [_names_of_nodes(backend) for backend in self._backends]
        made = report(seen, nodes, version=__version__, node=self._node, started=self._started)
        self._made += 1
        return Answer(
            "application/json",
            gzip.compress(msgspec.json.encode(made), _COMPRESSION),
            tag=f"{self._started * 1000:.0f}-{self._made}",
            packed=True,
        )


def _names_of_nodes(backend: BinderBackend) -> dict[str, tuple[str, ...]]:
    """Return the names of the nodes that are there, by the IDs under which their devices are advertised."""
    named = {device_id: tuple(node.name for node in nodes) for device_id, nodes in backend.nodes().items()}
    return {advertised: names for device_id, names in named.items() for advertised in backend.ids(device_id)}


def _metrics(metrics: Metrics, look: Look) -> Route:
    """Return the route of ``metrics``, for which the kubelet is asked who has what."""
    metrics.allocated = lambda: {name: len(owners) for name, owners in look.allocations.owners.items()}
    ask = in_loop(look.seen)

    def answer() -> Answer:
        with contextlib.suppress(TimeoutError):  # a loop that is stuck is just what metrics are looked at for
            ask()
        return Answer(*metrics.exposition())

    return answer


def _told(problems: Iterable[tuple[str, str]]) -> str:
    """Return the problems of the resources in a line, each with the resource's name where there are several."""
    every = list(problems)
    return "; ".join(problem if len(every) == 1 else f"{name}: {problem}" for name, problem in every if problem)
