"""The benchmark itself, with few devices: the caller in Go, and every measure of this project's plugin.

``make test-bench`` runs it; it requires Go.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.bench import caller, contestants, measures, report
from tests.bench.report import FIGURES
from tests.bench.trial import trial

pytestmark = pytest.mark.timeout(1800)  # the first test that needs the caller downloads and compiles gRPC for Go
DEVICES = 20


@contextlib.contextmanager
def plugin(socket: str) -> Iterator[list[bytes]]:
    """Serve an Allocate on a socket, which fails the request ``fail``, and yield the requests."""
    requests: list[bytes] = []

    def allocate(request: bytes, context: grpc.ServicerContext) -> bytes:
        requests.append(request)
        if request == b"fail":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "on purpose")
        return b"response"

    server = grpc.server(ThreadPoolExecutor(8))
    methods = {"Allocate": grpc.unary_unary_rpc_method_handler(allocate)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield requests
    finally:
        server.stop(None).wait()


def test_the_caller_sends_all_requests_in_order_and_measures_those_after_the_warm_up(tmp_path: Path) -> None:
    """A failed call is an error."""
    program, socket = caller.program(), str(tmp_path / "plugin.sock")
    requests = [b"", b"one", b"x" * 300_000, *(f"request {number}".encode() for number in range(20))]
    with plugin(socket) as received:
        durations = caller.call(program, socket, requests, warm_up=3)
        assert received == requests
        assert len(durations) == 20
        assert min(durations) > 0
        with pytest.raises(caller.CallError, match="on purpose"):
            caller.call(program, socket, [b"request", b"fail", b"request"])


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
