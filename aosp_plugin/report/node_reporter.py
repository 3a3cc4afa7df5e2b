"""Reports the state of the resources on the Node: by Events and the startup taint, as configured.

Every second, each output reads the state of the resources, and writes what has changed. The outputs have tasks and
connections of their own, so their failures do not affect what the plugin publishes and allocates. A failure is a
condition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily

from aosp_plugin.backend.catalog import NODE_TASK_FAILING
from aosp_plugin.config.keys import Config
from aosp_plugin.config.sources import node_name
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.credentials import in_cluster
from aosp_plugin.framework.apiserver.protocol import ApiError
from aosp_plugin.framework.clock import Backoff
from aosp_plugin.framework.conditions import Condition, Conditions
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.report.node_events import NodeEvents, ResourceWatch
from aosp_plugin.report.node_taint import StartupTaint

INTERVAL = 1.0
"""Seconds between two readings of the state of the resources."""


class Output(Protocol):
    """A writer of something on the Node that follows the state of the resources."""

    def observe(self) -> None:
        """Read the state. Returns at once, and never raises."""

    async def write(self) -> None:
        """Write what has changed. Raises ApiError, OSError and PluginError."""


class NodeMetrics:
    """The metrics of the outputs."""

    def __init__(self, registry: CollectorRegistry, conditions: Conditions, tasks: Collection[str]) -> None:
        """``tasks`` are the names of the outputs, which may still be added."""
        self._conditions = conditions
        self._tasks = tasks
        registry.register(self)
        self.requests = Counter(
            "aosp_plugin_node_requests_total",
            "Requests for Events and the startup taint by HTTP status, or `error`.",
            ["verb", "object", "code"],
            registry=registry,
        )

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield which outputs fail, for prometheus_client."""
        failing = {each.subject for each in self._conditions.of("") if each.kind is NODE_TASK_FAILING}
        problem = GaugeMetricFamily(
            "aosp_plugin_node_problem",
            "1 while the plugin fails at `events` or `startup_taint`, else 0; absent for what is off.",
            labels=["task"],
        )
        for task in self._tasks:
            problem.add_metric([task], task in failing)
        yield problem


class NodeReporter:
    """The outputs of one configuration. For one event loop."""

    def __init__(
        self,
        config: Config,
        servers: Sequence[ResourceServer],
        conditions: Conditions,
        metrics: Metrics,
    ) -> None:
        """Create the configured outputs and their metrics.

        Raises ServiceAccountMissingError if there are any, and the address of the API server is unknown.
        """
        self._conditions = conditions
        self._api: ApiClient | None = None
        self._outputs: dict[str, Output] = {}
        self._metrics = NodeMetrics(metrics.registry, conditions, self._outputs.keys())
        if config.node_events or config.startup_taint:
            credentials = in_cluster(config.service_account_dir, conditions=conditions)
            self._api = api = ApiClient(credentials, observer=self._count_request, user_agent="aosp-device-plugin")
            if config.node_events:
                self._outputs["events"] = NodeEvents(api, node_name(), [ResourceWatch(server) for server in servers])
            if config.startup_taint:
                self._outputs["startup_taint"] = StartupTaint(api, node_name(), config.startup_taint, servers)

    def work(self) -> list[Coroutine[None, None, None]]:
        """Return the work of each task, which ends when it is cancelled."""
        outputs = self._outputs
        writing = [keep_written(name, output, self._conditions) for name, output in outputs.items()]
        return [keep_observed([*outputs.values()]), *writing] if outputs else []

    def _count_request(self, verb: str, object_name: str, code: str, _seconds: float) -> None:
        """Count a request about the Node. ``code`` is an HTTP status, or ``error`` without an answer."""
        self._metrics.requests.labels(verb, object_name, code).inc()

    async def close(self) -> None:
        """Close connections."""
        if self._api is not None:
            await self._api.aclose()


async def keep_observed(outputs: Sequence[Output], interval: float = INTERVAL) -> None:
    """Make the outputs read the state again and again, until cancelled. A request that hangs does not delay them."""
    while True:
        for output in outputs:
            output.observe()
        await asyncio.sleep(interval)


async def keep_written(
    name: str,
    output: Output,
    conditions: Conditions,
    *,
    interval: float = INTERVAL,
    backoff: Backoff | None = None,
) -> None:
    """Write the changes of an output until cancelled; after each further failure, wait longer.

    The condition changes only with the type of the error or its HTTP status, because the text of an error may vary.
    """
    backoff = backoff or Backoff(first=1.0, cap=60.0)
    failure: object = None
    while True:
        try:
            await output.write()
        except (ApiError, OSError, PluginError) as error:
            before, failure = failure, (type(error), error.status if isinstance(error, ApiError) else str(error))
            if failure != before:
                found = Condition(NODE_TASK_FAILING, str(error), name, fields={"task": name, "error": str(error)})
                conditions.replace(name, "", [found])
            await asyncio.sleep(backoff.pause(error.retry_after if isinstance(error, ApiError) else None))
        else:
            conditions.replace(name, "", ())
            failure = None
            backoff.succeeded()
            await asyncio.sleep(interval)
