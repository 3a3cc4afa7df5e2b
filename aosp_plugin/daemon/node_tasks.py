"""The tasks that write Events, the startup taint and the feature file of this node, as far as they are configured.

None of them affects what the plugin publishes and allocates: they have tasks, worker threads and connections of their
own, and their failures are a log line and a metric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aosp_plugin.binder.driver.host import Host
from aosp_plugin.daemon.servers import node_name
from aosp_plugin.framework.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from aosp_plugin.backend import BinderBackend
    from aosp_plugin.config import Config
    from aosp_plugin.framework.apiserver.client import ApiClient
    from aosp_plugin.framework.resource_server import ResourceServer
    from aosp_plugin.framework.service.metrics import Metrics


class NodeTasks:
    """Those of one configuration. For one event loop."""

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
        self._config = config
        self._servers = servers
        self._backends = backends
        self._metrics = metrics
        self._api = self._client() if config.node_events or config.startup_taint else None
        self._worker = Worker("node")
        # A file system that hangs stops the feature file, and must not stop Events: they report what follows from it.
        self._file_worker = Worker("feature file")

    def work(self) -> list[Coroutine[None, None, None]]:
        """Return the work of each task, which ends when it is cancelled."""
        work = [*self._events(), *self._startup_taint()]
        if self._config.feature_file:
            work.append(self._feature_file())
        return work

    async def close(self) -> None:
        """Close connections, and end the worker threads."""
        self._worker.close()
        self._file_worker.close()
        if self._api is not None:
            await self._api.close()

    def _client(self) -> ApiClient:
        from aosp_plugin.framework.apiserver.client import ApiClient  # noqa: PLC0415 - megabytes, only where required
        from aosp_plugin.framework.apiserver.credentials import in_cluster  # noqa: PLC0415 - as above

        credentials = in_cluster(self._config.service_account_dir)
        return ApiClient(credentials, observer=self._metrics.node_request, user_agent="aosp-device-plugin")

    def _events(self) -> list[Coroutine[None, None, None]]:
        if not self._config.node_events or self._api is None:
            return []
        from aosp_plugin.daemon.node_events import NodeEvents  # noqa: PLC0415 - only where required
        from aosp_plugin.daemon.node_problem import NodeProblem  # noqa: PLC0415 - as above
        from aosp_plugin.daemon.node_watch import ResourceWatch, watch  # noqa: PLC0415 - as above

        events = NodeEvents(self._api, node_name(), NodeProblem("events", self._metrics.node_problem))
        watches = [ResourceWatch(server, self._worker, events.record) for server in self._servers]
        return [watch(watches), events.run()]

    def _startup_taint(self) -> list[Coroutine[None, None, None]]:
        key = self._config.startup_taint
        if not key or self._api is None:
            return []
        from aosp_plugin.daemon.node_problem import NodeProblem  # noqa: PLC0415 - only where required
        from aosp_plugin.daemon.node_taint import StartupTaint  # noqa: PLC0415 - as above

        problem = NodeProblem("startup_taint", self._metrics.node_problem)
        return [StartupTaint(self._api, node_name(), key, self._servers, problem).run()]

    def _feature_file(self) -> Coroutine[None, None, None]:
        from aosp_plugin.daemon.node_features import Feature, FeatureFile  # noqa: PLC0415 - only where required
        from aosp_plugin.daemon.node_problem import NodeProblem  # noqa: PLC0415 - as above

        host = Host(self._config.host_root)
        features = [Feature(server, self._backends[server.resource_name], host) for server in self._servers]
        path = host.process_path(self._config.feature_file)
        return FeatureFile(
            path, features, self._file_worker, NodeProblem("feature_file", self._metrics.node_problem)
        ).run()
