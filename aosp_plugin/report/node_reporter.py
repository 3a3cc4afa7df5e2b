"""Reports the state of the resources on the Node: by Events, the startup taint and the feature file, as configured.

Every second, each output reads the state of the resources, and writes what differs from what it wrote before. None of
that affects what the plugin publishes and allocates: the outputs have tasks, worker threads and connections of their
own, and their failures are a log line and a metric.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.host_errors import HostError
from aosp_plugin.config.keys import Config
from aosp_plugin.framework.apiserver.protocol import ApiError
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.resource_server import ResourceServer
from aosp_plugin.framework.service.metrics import Metrics
from aosp_plugin.framework.timings import DEFAULT, Backoff
from aosp_plugin.framework.worker import Worker

if TYPE_CHECKING:
    from aosp_plugin.framework.apiserver.client import ApiClient

LOG = logging.getLogger(__name__)


NODE_VARIABLE = "NODE_NAME"
"""Environment variable with the name of the Kubernetes node. The host name that a container sees is that of its pod."""


def node_name() -> str:
    """Return the name of the Kubernetes node."""
    return os.environ.get(NODE_VARIABLE) or os.uname().nodename


class Output(Protocol):
    """Something on the Node that follows the state of the resources."""

    def observe(self) -> None:
        """Read the state. Returns at once, and never raises."""

    async def write(self) -> None:
        """Write what differs. Raises ApiError, OSError, HostError and PluginError."""


class NodeReporter:
    """The outputs of one configuration. For one event loop."""

    def __init__(
        self,
        config: Config,
        servers: Sequence[ResourceServer],
        backends: Mapping[str, BinderBackend],
        metrics: Metrics,
    ) -> None:
        """Create what the configuration requires.

        Raises ServiceAccountMissingError if that includes the API server, and its address is unknown.
        """
        self._metrics = metrics
        self._worker = Worker("feature file")
        self._api: ApiClient | None = None
        self._outputs: dict[str, Output] = {}
        if config.node_events or config.startup_taint:
            from aosp_plugin.framework.apiserver.client import ApiClient  # noqa: PLC0415 - megabytes, only where required
            from aosp_plugin.framework.apiserver.credentials import in_cluster  # noqa: PLC0415 - as above

            credentials = in_cluster(config.service_account_dir)
            self._api = api = ApiClient(credentials, observer=metrics.node_request, user_agent="aosp-device-plugin")
            if config.node_events:
                from aosp_plugin.report.node_events import NodeEvents, ResourceWatch  # noqa: PLC0415 - where configured

                self._outputs["events"] = NodeEvents(api, node_name(), [ResourceWatch(server) for server in servers])
            if config.startup_taint:
                from aosp_plugin.report.node_taint import StartupTaint  # noqa: PLC0415 - as above

                self._outputs["startup_taint"] = StartupTaint(api, node_name(), config.startup_taint, servers)
        if config.feature_file:
            from aosp_plugin.report.node_features import Feature, FeatureFile  # noqa: PLC0415 - as above

            features = [Feature(server, backends[server.resource_name]) for server in servers]
            path = Host(config.host_root).process_path(config.feature_file)
            self._outputs["feature_file"] = FeatureFile(path, features, self._worker)

    def work(self) -> list[Coroutine[None, None, None]]:
        """Return the work of each task, which ends when it is cancelled."""
        outputs = self._outputs
        writing = [keep_written(name, output, self._metrics.node_problem) for name, output in outputs.items()]
        return [keep_observed([*outputs.values()]), *writing] if outputs else []

    async def close(self) -> None:
        """Close connections, and end the worker thread."""
        self._worker.close()
        if self._api is not None:
            await self._api.close()


async def keep_observed(outputs: Sequence[Output], interval: float = DEFAULT.state) -> None:
    """Make the outputs read the state again and again, until cancelled. A request that hangs does not delay them."""
    while True:
        for output in outputs:
            output.observe()
        await asyncio.sleep(interval)


async def keep_written(
    name: str,
    output: Output,
    changed: Callable[[str, int], None],
    *,
    interval: float = DEFAULT.state,
    backoff: Backoff | None = None,
) -> None:
    """Write the differences of an output until cancelled; after a failure, wait longer and longer.

    ``changed`` is called with the name and the number of problems, 0 or 1, at the start and after each attempt. The
    same kind of error is logged once, because its text may vary.
    """
    backoff = backoff or Backoff(first=1.0, cap=60.0)
    failure: object = None
    changed(name, 0)
    while True:
        try:
            await output.write()
        except (ApiError, OSError, HostError, PluginError) as error:
            before, failure = failure, (type(error), error.status if isinstance(error, ApiError) else str(error))
            changed(name, 1)
            if failure != before:
                LOG.warning("node task failed, retrying", extra={"task": name, "error": str(error)})
            await asyncio.sleep(backoff.pause(error.retry_after if isinstance(error, ApiError) else None))
        else:
            changed(name, 0)
            if failure is not None:
                LOG.info("node task recovered", extra={"task": name})
            failure = None
            backoff.succeeded()
            await asyncio.sleep(interval)
