"""Reads a cluster through ``kubectl proxy``: lists in a few requests side by side, and every plugin's answer."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from aosp_plugin.cli.fleet import decoding
from aosp_plugin.cli.fleet.asking import NOT_SHOWN, Asking
from aosp_plugin.cli.fleet.cluster import Cluster
from aosp_plugin.framework.apiserver import paths
from aosp_plugin.framework.apiserver.errors import ApiError, ForbiddenError, NotFoundError
from aosp_plugin.framework.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

    from aosp_plugin.cli.fleet.api import Api
    from aosp_plugin.cli.fleet.cluster import PluginAnswer, PluginPod
    from aosp_plugin.cli.fleet.fleet import Selection

T = TypeVar("T")

LABEL: Final = "app.kubernetes.io/name=aosp-device-plugin"
"""Of the plugin's DaemonSet and pods."""
THREADS: Final = 16
"""Requests at a time: seven lists, and plugins."""

_PODS: Final = "/api/v1/pods"
_DEFAULT_SERVER: Final = ":8080: connect: connection refused"
_NO_CLUSTER: Final = "; kubectl asks localhost:8080 if its kubeconfig names no cluster"


class Timing(NamedTuple):
    """How long a part of the work took."""

    what: str
    begin: float
    end: float


class Gatherer:
    """Reads one cluster once."""

    def __init__(self, api: Api, selection: Selection) -> None:
        """Request only the objects that the selection requires."""
        self._api = api
        self._selection = selection
        self._missing: dict[str, str] = {}
        self._errors: list[ApiError] = []
        self.timings: list[Timing] = []
        """Of each list, and of the plugins together."""

    def gather(self, executor: ThreadPoolExecutor) -> Cluster:
        """Read everything. Raises ServiceError if nothing can be read."""
        chosen = self._selection
        labels, one = {"labelSelector": LABEL}, chosen.nodes[0] if len(chosen.nodes) == 1 else ""
        pods = {**_field("spec.nodeName", one), **({"labelSelector": chosen.selector} if chosen.selector else {})}
        slices = paths.RESOURCE_SLICES
        start = partial(self._start, executor)
        whose = "plugins" if chosen.namespace else "phones of pods, and plugins"
        plugin_pods = start(_PODS, labels, decoding.plugin_pod, whose)
        nodes = start(paths.NODES, _field("metadata.name", one), decoding.node, "capacity and readiness of nodes")
        listed = start(_in_namespace(_PODS, chosen.namespace), pods, decoding.pod, "phones of pods")
        daemon_sets = start("/apis/apps/v1/daemonsets", labels, decoding.daemon_set, "nodes that never had a plugin")
        found = start(slices, _field("spec.nodeName", one), decoding.resource_slice, "phones of DRA")
        claims = start(
            _in_namespace(f"{paths.RESOURCE_API}/resourceclaims", chosen.namespace),
            {},
            decoding.claim,
            "which pods have phones of DRA",
        )
        classes = start(f"{paths.RESOURCE_API}/deviceclasses", {}, decoding.device_class, "classes of waiting claims")
        answers = self._ask(executor, plugin_pods.result() or ())
        parts = [future.result() for future in (nodes, listed, daemon_sets, found, claims, classes)]
        if all(part is None for part in parts[:2]):
            hint = _NO_CLUSTER if _DEFAULT_SERVER in str(self._errors[0]) else ""
            raise ServiceError(f"nothing can be read: {self._errors[0]}{hint}")
        result = [None if part is None else tuple(part) for part in parts]
        plugins = plugin_pods.result()
        return Cluster(
            time=time.time(),
            nodes=result[0],
            pods=result[1],
            plugin_pods=None if plugins is None else tuple(plugins),
            daemon_sets=result[2],
            slices=result[3],
            claims=result[4],
            classes=result[5],
            answers=answers,
            missing=tuple(self._missing.values()),
        )

    def _start(
        self,
        executor: ThreadPoolExecutor,
        path: str,
        query: Mapping[str, str],
        decode: Callable[[bytes], T | None],
        what: str,
    ) -> Future[list[Any] | None]:
        return executor.submit(self._list, path, query, decode, what)

    def _list(
        self, path: str, query: Mapping[str, str], decode: Callable[[bytes], T | None], what: str
    ) -> list[T] | None:
        """Return the objects of a collection; None if it cannot be read, which is noted."""
        begin = time.monotonic()
        try:
            found = self._api.list(path, query, decode)
        except NotFoundError:  # the API server has no DRA
            return []
        except ApiError as error:
            self._errors.append(error)
            self._missing.setdefault(path, _line(error, what))
            return None
        self.timings.append(Timing(f"list {paths.parse(path).resource}: {len(found):,}", begin, time.monotonic()))
        return found

    def _ask(self, executor: ThreadPoolExecutor, pods: Sequence[PluginPod]) -> dict[tuple[str, str], PluginAnswer]:
        """Return what the plugins of the selected nodes answer, and note why others do not."""
        begin = time.monotonic()
        nodes = self._selection.nodes
        asked = [pod for pod in pods if pod.address and (not nodes or pod.node in nodes)]
        asking = Asking(self._api, executor)
        answers = asking.ask(asked)
        if asking.forbidden is not None:
            self._missing["proxy"] = _line(asking.forbidden, NOT_SHOWN)
        elif len(answers) < len(asked):
            reason = asking.unreachable or "a NetworkPolicy may drop the API server's packets"
            silent = f"{len(asked) - len(answers):,} of {len(asked):,} plugins do not answer the API server"
            self._missing["proxy"] = f"{silent}; not shown: {NOT_SHOWN}: {reason}"
        self.timings.append(Timing(f"plugins: {len(answers):,} of {len(asked):,}", begin, time.monotonic()))
        return answers


def _field(name: str, value: str) -> dict[str, str]:
    return {"fieldSelector": f"{name}={value}"} if value else {}


def _in_namespace(path: str, namespace: str) -> str:
    if not namespace:
        return path
    base, _, plural = path.rpartition("/")
    return paths.object_path(f"{base}/namespaces", namespace) + f"/{plural}"


def _line(error: ApiError, what: str) -> str:
    """Return a line about what could not be read, and what is not shown therefore."""
    target = paths.parse(error.path)
    resource = f"{target.resource}.{target.group}" if target.group else target.resource
    where = f"in namespace {target.namespace}" if target.namespace else "in all namespaces"
    where = "" if target.resource in {"nodes", "resourceslices", "deviceclasses"} else f" {where}"
    if isinstance(error, ForbiddenError):
        return f"missing right: {error.verb} {resource}{where}; not shown: {what}"
    return f"cannot {error.verb} {resource}{where}; not shown: {what}: {error.message}"
