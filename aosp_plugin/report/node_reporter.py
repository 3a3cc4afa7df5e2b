"""Reports the state of the resources on the Node: by Events and the startup taint, as configured.

Each has a task of its own, so its failures affect neither the other nor what the plugin publishes and allocates. A
failure is a condition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from prometheus_client import Gauge

from aosp_plugin.backend.catalog import NODE_TASK_FAILING
from aosp_plugin.config.keys import Config
from aosp_plugin.config.sources import node_name
from aosp_plugin.framework.apiserver.client import ApiClient
from aosp_plugin.framework.apiserver.credentials import in_cluster
from aosp_plugin.framework.apiserver.protocol import ApiError
from aosp_plugin.framework.conditions import Condition, Conditions
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.metrics import Metrics
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.timing import Backoff
from aosp_plugin.report.node_events import ConditionWatch, DeviceWatch, NodeEvents
from aosp_plugin.report.node_taint import StartupTaint

INTERVAL = 1.0
"""Seconds between two readings of the state of the resources."""

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
