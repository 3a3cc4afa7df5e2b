"""The process may start no further thread, for example because of ``pids.max``, while the kubelet restarts."""

import contextlib
import logging
import socket
import threading
from http import HTTPStatus

import pytest

from aosp_plugin.framework.service import http
from kubelet_standin import Kubelet
from tests.support import RESOURCE, DeviceDirectory, http_serving, listed, running, sockets


def refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_plugin_that_may_start_no_thread_registers_again(
    device_directory: DeviceDirectory, kubelet_dir: str
) -> None:
    device_directory.add(1, 2)

    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            await kubelet.restart()
            await listed(kubelet, 2)
        assert len(sockets(kubelet_dir)) == 1
        assert list(kubelet.resource(RESOURCE).devices) == ["aosp_binder1", "aosp_binder2"]


def test_http_connections_that_get_no_thread_are_one_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are closed, and the next ones are served when there are threads again."""
    monkeypatch.setattr(http, "ACCEPT_RETRY", 0.01)
    with http_serving(("127.0.0.1", 0), {"/": lambda: http.text(HTTPStatus.OK, "served")}) as port:

        def get() -> bytes:
            with socket.create_connection(("127.0.0.1", port)) as connection, contextlib.suppress(ConnectionError):
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                return connection.makefile("rb").read()
            return b""

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert [get() for _ in range(3)] == [b""] * 3
        assert get().endswith(b"served\n")
    (record,) = [vars(record) for record in caplog.records if record.levelno >= logging.WARNING]
    assert record["message"] == "HTTP connections cannot be accepted, retrying"
    assert (record["error"], record["exc_info"]) == ("can't start new thread", None)
