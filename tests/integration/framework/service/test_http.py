"""The HTTP server over real sockets: probes, headers, entity tags, and limits for clients."""

import asyncio
import contextlib
import http.client
import logging
import re
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from aosp_plugin.framework.errors import ServiceError
from aosp_plugin.framework.service import http as plugin_http
from aosp_plugin.framework.service.address import listen
from aosp_plugin.framework.service.http import Answer, in_loop, text
from aosp_plugin.report.endpoints import page_routes
from tests.support import http_serving as serving

LOCAL = ("127.0.0.1", 0)
REQUEST = b"GET / HTTP/1.0\r\n\r\n"


class Response(NamedTuple):
    """The response to a request."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


def get(
    port: int, path: str, method: str = "GET", *, host: str = "127.0.0.1", headers: dict[str, str] | None = None
) -> Response:
    """Send a request and wait for the response."""
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=8)) as connection:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return Response(response.status, response.read(), dict(response.getheaders()))


def raw(port: int, request: bytes) -> bytes:
    """Send bytes and return all bytes that come back."""
    with connected(port) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def wait_for_connections() -> None:
    """Wait until the threads of all connections have ended."""
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(10)


def ok() -> Answer:
    return text(HTTPStatus.OK, "ok")


def hello() -> Answer:
    return Answer("text/plain", b"hello", tag="1-2")


@pytest.fixture
def port() -> Iterator[int]:
    """Serve "hello" with an entity tag at /."""
    with serving(LOCAL, {"/": hello, "/healthz": ok}) as port:
        yield port


# -- probes


def test_text_is_one_line_of_utf_8() -> None:
    with serving(LOCAL, {"/readyz": lambda: text(HTTPStatus.SERVICE_UNAVAILABLE, "not registered: é")}) as port:
        response = get(port, "/readyz")
        assert (response.status, response.text) == (503, "not registered: é\n")
        assert response.headers["Content-Length"] == str(len("not registered: é\n".encode()))


async def test_route_runs_in_the_event_loop_or_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the loop is stuck, the server answers with 503; afterwards the route works again."""
    threads: list[threading.Thread] = []

    async def check() -> Answer:
        assert asyncio.get_running_loop() is loop
        threads.append(threading.current_thread())
        return ok()

    loop = asyncio.get_running_loop()
    with serving(LOCAL, {"/healthz": in_loop(check)}) as port:
        monkeypatch.setattr(plugin_http, "LOOP_TIMEOUT", 0.6)
        response = get(port, "/healthz")  # blocks the loop
        assert (response.status, response.text) == (503, "the event loop has not answered for 1 s\n")
        monkeypatch.setattr(plugin_http, "LOOP_TIMEOUT", 30.0)
        assert (await asyncio.to_thread(get, port, "/healthz")).status == 200
    assert set(threads) == {threading.current_thread()}


# -- paths and methods


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        *(("GET", path, 404, "not found\n") for path in ("/healthz/", "/metrics", "/../healthz")),
        *((method, "/", 405, "only GET and HEAD are supported\n") for method in ("POST", "PUT", "OPTIONS", "BREW")),
        ("GET", "/", 200, "hello"),
        ("GET", "/healthz", 200, "ok\n"),
    ],
)
def test_every_answer_has_its_status_and_security_headers(
    port: int, method: str, path: str, status: int, text: str
) -> None:
    """A browser loads nothing from other hosts, shows the page in no frame, and gives it to no other origin."""
    response = get(port, path, method)
    headers = response.headers
    assert (response.status, response.text) == (status, text)
    assert headers.get("Allow") == ("GET, HEAD" if status == 405 else None)
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy.pop("default-src") == "'none'"
    assert policy.pop("frame-ancestors") == policy.pop("form-action") == policy.pop("base-uri") == "'none'"
    assert policy == dict.fromkeys(("script-src", "style-src", "img-src", "connect-src"), "'self'")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-cache"
    assert not [name for name in headers if name.startswith("Access-Control")]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET / HTTP/1.1\r\n" + b"a\r\n" * 200, b"431"),
    ],
)
def test_invalid_request_is_rejected_without_repeating_it(port: int, request_: bytes, status: bytes) -> None:
    answer = raw(port, request_ + b"\r\n")
    assert b"<" not in answer
    assert answer.startswith(b"HTTP/1.0 " + status)


# -- headers


def test_unknown_host_name_is_421(port: int) -> None:
    """A client that sends no host name is not a browser."""
    response = get(port, "/", headers={"Host": "evil.example"})
    assert response.status == 421
    assert response.text.startswith("unknown host name 'evil.example': use an IP address")
    assert get(port, "/", headers={"Host": f"localhost:{port}"}).status == 200
    assert raw(port, REQUEST).endswith(b"hello")
    with plugin_http.serving(listen(LOCAL), {"/": hello}, ("Node-7.Example",)) as other_port:
        assert get(other_port, "/", headers={"Host": "node-7.example"}).status == 200


@pytest.mark.parametrize(
    ("tags", "status"),
    [
        ('W/"1-2"', 304),
        ('"1-2"', 304),
        ('W/"0-1", W/"1-2"', 304),
        ('W/"1-1"', 200),
        ('W/"11-2"', 200),
        ("", 200),
        ("1-2", 200),
    ],
)
def test_known_entity_tag_is_304_without_a_body(port: int, tags: str, status: int) -> None:
    """An answer without an entity tag is always sent."""
    response = get(port, "/", headers={"If-None-Match": tags})
    assert (response.status, response.headers["ETag"]) == (status, 'W/"1-2"')
    assert response.body == (b"hello" if status == 200 else b"")
    untagged = get(port, "/healthz", headers={"If-None-Match": tags})
    assert (untagged.status, "ETag" in untagged.headers) == (200, False)


# -- slow, large and many requests


def test_slow_request_is_cut_off(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline is for the whole request, even if bytes keep arriving: here after the first one."""
    monkeypatch.setattr(plugin_http, "CLIENT_TIMEOUT", 3600.0)
    times = iter([0.0, 0.0])
    monkeypatch.setattr(plugin_http, "time", SimpleNamespace(monotonic=lambda: next(times, 3601.0)))
    with connected(port) as connection:
        connection.sendall(b"x")
        assert connection.recv(1) == b""


def test_large_request_is_cut_off(port: int) -> None:
    head = b"GET / HTTP/1.0\r\n" + b"A: b\r\n" * 90
    assert raw(port, head + b"\r\n").endswith(b"hello")
    with contextlib.suppress(ConnectionError):  # reset if data is still in transit
        assert raw(port, head + b"A: " + b"b" * 30_000 + b"\r\n\r\n") == b""


def test_new_connection_replaces_the_oldest(port: int) -> None:
    """A client with many connections cannot lock out a probe."""
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(port)) for _ in range(plugin_http.MAX_CONNECTIONS)]
        assert get(port, "/").status == 200
        assert idle[0].recv(1) == b""
        for connection in idle[1:]:
            connection.sendall(REQUEST)
            assert connection.recv(4) == b"HTTP"


def test_connections_that_get_no_thread_are_one_log_line(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are closed, and the next ones are served when there are threads again."""
    monkeypatch.setattr(plugin_http, "ACCEPT_RETRY", 0.01)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def answer() -> bytes:
        with contextlib.suppress(ConnectionError):
            return raw(port, REQUEST)
        return b""

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert [answer() for _ in range(3)] == [b""] * 3
    assert answer().endswith(b"hello")
    (record,) = [vars(record) for record in caplog.records if record.levelno >= logging.WARNING]
    assert record["message"] == "HTTP connections cannot be accepted, retrying"
    assert (record["error"], record["exc_info"]) == ("can't start new thread", None)


# -- logging


@pytest.mark.parametrize("error", [ValueError("a bug"), FileNotFoundError("a file of the page")], ids=repr)
def test_error_in_a_route_is_500_and_logged_with_traceback(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The next request is served."""

    def broken() -> Answer:
        raise error

    with serving(LOCAL, {"/": broken, "/hello": hello}) as port:
        response = get(port, "/")
        assert (response.status, response.text) == (500, "internal error; the plugin's log has the cause\n")
        assert get(port, "/hello").status == 200
        wait_for_connections()
    (record,) = caplog.records
    assert (record.levelno, record.getMessage(), record.path) == (logging.ERROR, "HTTP request failed", "/")  # type: ignore[attr-defined]
    assert str(error) in caplog.text


# -- start and end


def test_unavailable_address_is_an_error() -> None:
    """It names the address and the reason. 192.0.2.0/24 is reserved for documentation."""
    with serving(LOCAL, {}) as port:
        message = rf"cannot listen on 127.0.0.1:{port}: .*in use; set another listen address"
        with pytest.raises(ServiceError, match=message), serving(("127.0.0.1", port), {}):
            pass
    with pytest.raises(ServiceError, match=r"cannot listen on 192\.0\.2\.1:0"), serving(("192.0.2.1", 0), {}):
        pass


# -- the files of the page


def test_page_refers_to_exactly_its_files_and_complies_with_its_security_policy() -> None:
    """It refers to no other host, and has no inline scripts or styles."""
    pending, visited = ["/"], set[str]()
    with serving(LOCAL, page_routes()) as port:
        while pending:
            path = pending.pop()
            visited.add(path)
            response = get(port, path)
            assert response.status == HTTPStatus.OK
            links = re.findall(r'(?:href|src)="(page/[^"]+)"', response.text)
            links += [f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', response.text)]
            pending += [f"/{link}" for link in links if f"/{link}" not in visited]
            text = response.text.replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"https?://|//cdn|@import", text), path
            assert not re.search(r"<script>|<style|\sstyle=|\son\w+=|innerHTML|insertAdjacentHTML|eval\(", text), path
    assert visited == set(page_routes())
