"""The benchmark itself, with few devices: the caller in Go, and every measure of this project's plugin.

``make test-bench`` runs it; it requires Go.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest

from tests.bench import caller, changes, contestants, measures
from tests.bench.figures import FIGURES
from tests.bench.samples import Samples
from tests.bench.trial import trial

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEVICES, MORE = 20, 40


class Plugin:
    """A server with an Allocate that fails the request ``fail``, and answers others when ``callers`` of them wait."""

    def __init__(self, socket: Path, callers: int = 1) -> None:
        self.socket = str(socket)
        self.requests: list[bytes] = []
        self.metadata: dict[str, str] = {}
        self._together = threading.Barrier(callers, timeout=20)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve on the socket."""
        server = grpc.server(ThreadPoolExecutor(8))
        allocate = grpc.unary_unary_rpc_method_handler(self._allocate)
        handlers = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", {"Allocate": allocate})
        server.add_generic_rpc_handlers((handlers,))
        server.add_insecure_port(f"unix:{self.socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()

    def _allocate(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.requests.append(request)
        self.metadata = {str(key): str(value) for key, value in context.invocation_metadata()}
        if request == b"fail":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "on purpose")
        self._together.wait()
        return b"response"


@pytest.fixture(scope="module")
def program() -> Path:
    return caller.program()


def test_the_caller_sends_all_requests_in_order_and_measures_those_after_the_warm_up(
    program: Path, tmp_path: Path
) -> None:
    plugin = Plugin(tmp_path / "plugin.sock")
    requests = [b"", b"one", b"x" * 300_000, *(f"request {number}".encode() for number in range(20))]
    with plugin.serving():
        calls = caller.call(program, plugin.socket, "Allocate", requests, warm_up=3)
    assert plugin.requests == requests
    assert len(calls.durations) == 20
    assert 0 < sum(calls.durations) <= calls.elapsed


def test_several_callers_call_at_the_same_time(program: Path, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path / "plugin.sock", callers=8)
    requests = [bytes([number]) for number in range(80)]
    with plugin.serving():  # which answers only when eight calls wait
        calls = caller.call(program, plugin.socket, "Allocate", requests, callers=8)
    assert sorted(plugin.requests) == requests
    assert len(calls.durations) == 80


def test_the_callers_requests_have_no_deadline(program: Path, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path / "plugin.sock")
    with plugin.serving():
        caller.call(program, plugin.socket, "Allocate", [b"request"])
    assert "grpc-timeout" not in plugin.metadata
    assert plugin.metadata["user-agent"].startswith("grpc-go/")


def test_a_failed_call_is_an_error(program: Path, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path / "plugin.sock")
    with plugin.serving(), pytest.raises(caller.CallError, match="on purpose"):
        caller.call(program, plugin.socket, "Allocate", [b"request", b"fail", b"request"])


def test_the_kubelet_of_the_benchmark_confirms_all_devices() -> None:
    """Otherwise this plugin would register again, and not be idle."""
    with trial(contestants.PLUGIN) as running, measures.running([running], DEVICES):
        metrics = running.exercise()
    assert f'aosp_plugin_kubelet_allocatable{{resource="aosp.io/binder"}} {DEVICES}.0' in metrics


def test_a_plugin_that_fails_a_measure_is_recorded_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bench.kubelet.PATIENCE", 5.0)
    samples = Samples()
    with trial(contestants.Contestant("ends", "true")) as first, trial(contestants.EMPTY_HANDLERS[1]) as second:
        measures.memory([first, second], DEVICES, samples)
    assert list(samples.summaries()) == [contestants.EMPTY_HANDLERS[1].name]
    assert samples.failures()["ends"][f"rss_{DEVICES}"].startswith("TimeoutError")


@pytest.mark.timeout(240)
def test_every_figure_of_this_plugin_is_measured_without_a_failure() -> None:
    samples = Samples()
    participants = [contestants.PLUGIN, *contestants.EMPTY_HANDLERS]
    with contextlib.ExitStack() as stack:
        trials = [stack.enter_context(trial(contestant)) for contestant in participants]
        busy = trials[:1]
        measures.starts(trials, DEVICES, 1, samples)
        measures.memory(trials, DEVICES, samples)
        with measures.running(trials, DEVICES):
            measures.idle(trials, 0.5, samples)
            measures.allocations(trials, 1, 5, samples)
            measures.preferences(busy, 1, samples)
            measures.hotplugs(busy, DEVICES, 1, samples)
            changes.consecutive(busy, DEVICES, 1, samples)
            changes.beside_flapping(busy, DEVICES, 0.05, 0.2, 1, samples)
            measures.restarts(busy, DEVICES, 1, samples)
        measures.burst(busy, DEVICES, samples)
        measures.many(trials, MORE, 1, samples)
        measures.growth(trials, DEVICES, MORE, samples)
    assert samples.failures() == {}
    measured = set(samples.summaries()[contestants.OURS])
    with_counts = {"rss_1000", "pss_1000", "rss_10000", "pss_10000", "rss_100000", "pss_100000", "listed_100000"}
    assert {figure.samples for figure in FIGURES.values()} - measured == with_counts
    assert {f"rss_{DEVICES}", f"pss_{DEVICES}", f"rss_{MORE}", f"pss_{MORE}", f"listed_{MORE}"} <= measured
