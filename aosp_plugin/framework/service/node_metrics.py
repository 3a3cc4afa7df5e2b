"""Prometheus metrics of what the plugin writes for its Node: Events, the startup taint, and the feature file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aosp_plugin.framework.service.counts import Registry


class NodeMetrics:
    """Created only where one of these is on."""

    def __init__(self, registry: Registry) -> None:
        self._problem = registry.gauge(
            "aosp_plugin_node_problem",
            "1 while Events, the startup taint or the feature file cannot be written.",
            "task",
        )
        self._requests = registry.counter(
            "aosp_plugin_node_requests_total",
            "Requests to the API server about the Node by HTTP status.",
            "verb",
            "object",
            "code",
        )

    def problem(self, task: str, count: int) -> None:
        """Record whether a task fails: 0 or 1."""
        self._problem.labels(task).set(count)

    def request(self, verb: str, resource: str, code: str) -> None:
        """Count a request; ``code`` is an HTTP status, or ``error`` without one."""
        self._requests.labels(verb, resource, code).inc()
