"""The benchmark itself, with few devices: the caller in Go, and every measure of this project's plugin.

``make test-bench`` runs it; it requires Go.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest

from tests.bench import caller, contestants, measures, report
from tests.bench.report import FIGURES
from tests.bench.trial import trial

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(1800)  # the first test that needs the caller downloads and compiles gRPC for Go
DEVICES = 20


class Plugin:
    """A server with an Allocate that fails the request ``fail``."""

    def __init__(self, socket: Path) -> None:
        self.socket = str(socket)
        self.requests: list[bytes] = []

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
        if request == b"fail":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "on purpose")
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
        durations = caller.call(program, plugin.socket, requests, warm_up=3)
    assert plugin.requests == requests
    assert len(durations) == 20
    assert min(durations) > 0


def test_a_failed_call_is_an_error(program: Path, tmp_path: Path) -> None:
    plugin = Plugin(tmp_path / "plugin.sock")
    with plugin.serving(), pytest.raises(caller.CallError, match="on purpose"):
        caller.call(program, plugin.socket, [b"request", b"fail", b"request"])


def test_the_kubelet_of_the_benchmark_confirms_all_devices() -> None:
    """Otherwise this plugin would register again, and not be idle."""
    with trial(contestants.PLUGIN) as running, measures.running([running], DEVICES):
        metrics = running.exercise()
    assert f'aosp_plugin_kubelet_allocatable{{resource="aosp.io/binder"}} {DEVICES}.0' in metrics


def test_every_figure_of_this_plugin_is_measured() -> None:
    participants = [contestants.PLUGIN, *contestants.EMPTY_HANDLERS]
    with contextlib.ExitStack() as stack:
        trials = [stack.enter_context(trial(contestant)) for contestant in participants]
        found = measures.measure(trials, DEVICES, divisor=8)
    assert set(found) == set(FIGURES)
    assert all(medians[contestants.OURS] > 0 for medians in found.values())
    table = report.table([contestant.name for contestant in participants], 1_200, [found])
    assert "never" not in table
