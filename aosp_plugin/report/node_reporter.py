"""Reports the state of the resources on the Node: by Events (``node_events``) and the startup taint, as configured.

Each has a task of its own, so its failures affect neither the other nor what the plugin publishes and allocates. A
failure is a condition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec
from prometheus_client import Gauge

from aosp_plugin.backend.catalog import NODE_TASK_FAILING
from aosp_plugin.config.keys import Config
from aosp_plugin.config.sources import node_name
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.credentials import in_cluster
from aosp_plugin.framework.apiserver.protocol import NODES, ApiError, InvalidObjectError, StoredObject, object_path
from aosp_plugin.framework.conditions import Condition, Conditions
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.timing import CLOCK, DEFAULT, Backoff, Clock
from aosp_plugin.report.node_events import ConditionWatch, DeviceWatch, NodeEvents

LOG = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two readings of the state of the resources."""

SETTLED = 600.0
"""Seconds between two requests of a Node that is done: it may have been deleted, and created again with the taint."""

Write = Callable[[], Awaitable[None]]
"""Reads the state of the resources, and writes what has changed. Raises ApiError, OSError and PluginError."""


def problem_metric(metrics: Metrics) -> Gauge:
    """Add the metric of the tasks to the metrics of the process."""
    return Gauge(
        "aosp_plugin_node_problem",
        "1 while the plugin fails at `events` or `startup_taint`, else 0; absent for what is off.",
        ["task"],
        registry=metrics.registry,
    )


class NodeReporter:
    """The tasks of one configuration. For one event loop."""

    def __init__(
        self,
        config: Config,
        servers: Sequence[ResourceServer],
        conditions: Conditions,
        metrics: Metrics,
    ) -> None:
        """Create the configured tasks and their metrics.

        Raises ServiceAccountMissingError if there are any, and the address of the API server is unknown.
        """
        self._conditions = conditions
        self._problem = problem_metric(metrics)
        self._api: ApiClient | None = None
        self._tasks: dict[str, Write] = {}
        if config.node_events or config.startup_taint:
            credentials = in_cluster(config.service_account_dir, conditions=conditions)
            self._api = api = ApiClient(credentials, user_agent="aosp-device-plugin")
            if config.node_events:
                names = ["", *(server.resource_name for server in servers)]
                watches: list[ConditionWatch | DeviceWatch] = [
                    *(ConditionWatch(conditions, name) for name in names),
                    *(DeviceWatch(server.inventory, server.resource_name) for server in servers),
                ]
                self._tasks["events"] = NodeEvents(api, node_name(), watches).write
            if config.startup_taint:
                self._tasks["startup_taint"] = StartupTaint(api, node_name(), config.startup_taint, servers).write

    def work(self) -> list[Coroutine[None, None, None]]:
        """Return the work of each task, which ends when it is cancelled."""
        return [keep_written(name, write, self._conditions, self._problem) for name, write in self._tasks.items()]

    async def close(self) -> None:
        """Close connections."""
        if self._api is not None:
            await self._api.aclose()


async def keep_written(
    name: str,
    write: Write,
    conditions: Conditions,
    problem: Gauge,
    *,
    interval: float = INTERVAL,
    backoff: Backoff | None = None,
) -> None:
    """Call ``write`` again and again until cancelled; after each further failure, wait longer.

    The condition changes only with the type of the error or its HTTP status, because the text of an error may vary.
    """
    backoff = backoff or Backoff(first=1.0, cap=60.0)
    failure: object = None
    problem.labels(name).set(0)
    while True:
        try:
            await write()
        except (ApiError, OSError, PluginError) as error:
            before, failure = failure, (type(error), error.status if isinstance(error, ApiError) else str(error))
            if failure != before:
                found = Condition(NODE_TASK_FAILING, str(error), name, fields={"task": name, "error": str(error)})
                conditions.replace(name, "", [found])
                problem.labels(name).set(1)
            await asyncio.sleep(backoff.pause(error.retry_after if isinstance(error, ApiError) else None))
        else:
            conditions.replace(name, "", ())
            problem.labels(name).set(0)
            failure = None
            backoff.succeeded()
            await asyncio.sleep(interval)


class _Spec(msgspec.Struct):
    taints: list[dict[str, Any]] = []


class _Status(msgspec.Struct):
    allocatable: dict[str, str] = {}


class Node(StoredObject, frozen=True):
    """The fields of a Node object that are used here."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


def is_ready(server: ResourceServer) -> bool:
    """Return whether the resource is ready and has healthy devices, of which the kubelet or the API server knows.

    Where the kubelet does not tell how many devices it has, the Node object alone shows them.
    """
    if not server.ready or not server.inventory.snapshot.healthy:
        return False
    if server.driver is not None:
        return server.driver.slices_confirmed > 0
    return server.confirmation.allocatable != 0


class StartupTaint:
    """Removes one taint from this node's Node object when the resources are ready. For one event loop.

    A kubelet adds the taint with ``--register-with-taints`` when it creates the Node object, but not if the object
    exists (pkg/kubelet/kubelet_node_status.go ``tryRegisterWithAPIServer``), as after a reboot. The plugin removes the
    taint, and never adds it: the scheduler knows the available devices anyway, and a taint that comes back would affect
    pods without a phone.
    """

    def __init__(
        self,
        api: ApiClient,
        node_name: str,
        key: str,
        servers: Sequence[ResourceServer],
        *,
        recheck: float = DEFAULT.recheck,
        settled: float = SETTLED,
        clock: Clock = CLOCK,
    ) -> None:
        """``key`` is the key of the taint, which may have any value and effect."""
        self._api = api
        self._path = object_path(NODES, node_name)
        self._key = key
        self._servers = servers
        self._recheck = recheck
        self._settled = settled
        self._clock = clock
        self._check_at = 0.0

    async def write(self) -> None:
        """Remove the taint if all resources are ready. Raises ApiError."""
        if not all(map(is_ready, self._servers)):
            self._check_at = 0.0  # check at the next registration: the kubelet may have created its Node again
        elif self._clock() >= self._check_at:
            done = await self._check()
            if all(map(is_ready, self._servers)):
                self._check_at = self._clock() + (self._settled if done else self._recheck)

    async def _check(self) -> bool:
        """Remove the taint if the Node has the devices; return whether the Node object no longer has the taint."""
        node = await self._api.get(self._path, Node)
        if not any(taint.get("key") == self._key for taint in node.spec.taints):
            return True
        plugins = [server.resource_name for server in self._servers if server.driver is None]
        if any(node.status.allocatable.get(name, "0") == "0" for name in plugins):  # the scheduler reads these
            return False
        try:
            await self._api.patch(self._path, removal(node, self._key))
        except InvalidObjectError:  # the taints have changed meanwhile
            return False
        LOG.info("startup taint removed", extra={"taint": self._key})
        return True


def removal(node: Node, key: str) -> list[dict[str, Any]]:
    """Return the JSON patch that removes the taints with this key, and fails if the Node or the taints have changed.

    Another client may change the Node at the same time, so the patch tests each taint before it removes it.
    """
    patch: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": node.metadata.uid}]
    for index, taint in reversed([*enumerate(node.spec.taints)]):
        if taint.get("key") == key:
            path = f"/spec/taints/{index}"
            patch += [{"op": "test", "path": path, "value": taint}, {"op": "remove", "path": path}]
    return patch
