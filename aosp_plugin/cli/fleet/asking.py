"""Asks plugins through the API server's proxy of pods: ``/status``, or else ``/metrics`` and ``/readyz``."""

from __future__ import annotations

import collections
import http
import time
from concurrent.futures import wait
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from aosp_plugin.cli.fleet import plugin_answers
from aosp_plugin.cli.fleet.cluster import PluginAnswer
from aosp_plugin.framework.apiserver import paths
from aosp_plugin.framework.apiserver.errors import ApiError, ForbiddenError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor

    from aosp_plugin.cli.fleet.api import Api
    from aosp_plugin.cli.fleet.cluster import PluginPod

T = TypeVar("T")
Key: TypeAlias = tuple[str, str]
"""Namespace and name of a plugin's pod."""

PROBES: Final = 3
"""Plugins of each revision that are asked first. If none answers, the others are not asked."""
PROBE_SECONDS: Final = 1.5
"""A NetworkPolicy may drop the packets of the API server, so that it waits in vain."""
SECONDS: Final = 5.0
"""Within which all others have to answer."""
NOT_SHOWN: Final = "what plugins report: reasons, devices and counts"

_STATUS, _METRICS, _READY = "/status", "/metrics", "/readyz"


class Asking:
    """Asks the plugins of a cluster once."""

    def __init__(self, api: Api, executor: ThreadPoolExecutor) -> None:
        """Use the threads of an executor."""
        self._api = api
        self._executor = executor
        self.forbidden: ForbiddenError | None = None
        """The error of the right that is missing."""
        self.unreachable = ""
        """Why a plugin could not be reached."""

    def ask(self, pods: Sequence[PluginPod]) -> dict[Key, PluginAnswer]:
        """Return what plugins answer, of those that do.

        Plugins of a revision have the same configuration: whether they serve /status to others is asked of some.
        """
        revisions: dict[Key, list[PluginPod]] = collections.defaultdict(list)
        for pod in sorted(pods, key=lambda pod: not pod.ready):
            revisions[pod.namespace, pod.revision].append(pod)
        probed = [pod for members in revisions.values() for pod in members[:PROBES]]
        answers = self._ask(probed, dict.fromkeys(revisions, True), PROBE_SECONDS)
        sources: dict[Key, set[str]] = collections.defaultdict(set)
        for pod in probed:
            if answer := answers.get((pod.namespace, pod.name)):
                sources[pod.namespace, pod.revision].add(answer.source)
        with_status = {revision: "status" in found for revision, found in sources.items()}
        rest = [pod for revision in with_status for pod in revisions[revision][PROBES:]]
        return answers | self._ask(rest, with_status, SECONDS)

    def _ask(self, pods: Sequence[PluginPod], with_status: dict[Key, bool], seconds: float) -> dict[Key, PluginAnswer]:
        """Return the answers that come within some seconds; ``with_status``: which revisions are asked for /status."""
        end = time.monotonic() + seconds
        futures: dict[Key, Future[PluginAnswer | None]] = {
            (pod.namespace, pod.name): self._executor.submit(
                self._answer, pod, end, status=with_status[pod.namespace, pod.revision]
            )
            for pod in pods
        }
        wait(futures.values(), seconds)
        for future in futures.values():
            future.cancel()
        return dict(_answered(futures))

    def _answer(self, pod: PluginPod, end: float, *, status: bool) -> PluginAnswer | None:
        """Return what a plugin answers; None if that is nothing."""
        base = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}:{pod.port}/proxy"
        found = self._get(f"{base}{_STATUS}", end, plugin_answers.from_status) if status else None
        found = found or self._get(f"{base}{_METRICS}", end, plugin_answers.from_metrics)
        if pod.ready and found is not None:
            return found
        text = self._get(f"{base}{_READY}", end, _text) or ""
        if found is not None:
            return PluginAnswer(found.source, found.resources, found.version, text)
        return PluginAnswer("readyz", ready=text) if text else None

    def _get(self, path: str, end: float, decode: Callable[[bytes], T]) -> T | None:
        seconds = end - time.monotonic()
        if seconds <= 0 or self.forbidden is not None:
            return None
        try:
            return decode(self._api.text(path, seconds))
        except ForbiddenError as error:
            self.forbidden = error
        except ApiError as error:
            # /readyz of a plugin that is not ready has the status 503, and its text is the reason. The API server's own
            # answer, if it cannot reach the plugin, is an object with a reason.
            if path.endswith(_READY) and error.status == http.HTTPStatus.SERVICE_UNAVAILABLE and not error.reason:
                return decode(error.message.partition(": ")[2].encode())
            # /status is on the pod's loopback address by default; and that nothing comes is no reason by itself.
            if error.status != http.HTTPStatus.NOT_FOUND and not isinstance(error.__cause__, TimeoutError):
                self.unreachable = error.message
        except ValueError as error:
            self.unreachable = f"{paths.parse(path).name}: {error}"
        return None


def _answered(futures: dict[Key, Future[PluginAnswer | None]]) -> Iterator[tuple[Key, PluginAnswer]]:
    for key, future in futures.items():
        if future.done() and not future.cancelled() and (answer := future.result()) is not None:
            yield key, answer


def _text(body: bytes) -> str:
    return " ".join(body.decode(errors="replace").split())
