"""What is served over HTTP, over real sockets: probes, tags, gzip, and clients that may be anybody."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import logging
import pkgutil
import re
import socket
import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

import pytest

from aosp_plugin.daemon import page
from aosp_plugin.errors import ServiceError
from aosp_plugin.framework.service import connections
from aosp_plugin.framework.service import http as plugin_http
from aosp_plugin.framework.service.connections import read_head
from aosp_plugin.framework.service.http import Answer, in_loop, names_this_host, probe, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL = ("127.0.0.1", 0)


class Reply(NamedTuple):
    """What came back."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


def ask(
    port: int, path: str, method: str = "GET", host: str = "127.0.0.1", headers: dict[str, str] | None = None
) -> Reply:
    """Ask, and block until the answer is there."""
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=8)) as connection:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return Reply(response.status, response.read(), dict(response.getheaders()))


async def asked(
    port: int, path: str, method: str = "GET", host: str = "127.0.0.1", headers: dict[str, str] | None = None
) -> Reply:
    """Ask, while the event loop goes on."""
    return await asyncio.to_thread(ask, port, path, method, host, headers)


def raw(port: int, request: bytes) -> bytes:
    """Send ``request`` as it is, and return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def nothing() -> str:
    """Say that nothing is wrong."""
    return ""


def hello() -> Answer:
    """Answer with what has a tag."""
    return Answer("text/plain", b"hello", tag="1-2")


def much() -> Answer:
    """Answer with what is worth packing."""
    return Answer("application/json", gzip.compress(b"[" + b"0," * 5000 + b"0]"), tag="7", gzipped=True)


# Probes


def test_nothing_wrong_is_200() -> None:
    """With a line of text, and nothing of the interpreter."""
    with serving(LOCAL, {"/healthz": probe(nothing)}) as port:
        reply = ask(port, "/healthz")
    assert (reply.status, reply.text) == (200, "ok\n")
    assert reply.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert reply.headers["Content-Length"] == "3"
    assert reply.headers["Server"] == "aosp-plugin"


def test_what_is_wrong_is_503_with_the_reason() -> None:
    """Each path by itself, and each time anew."""
    problems = {"/healthz": "", "/readyz": "not registered: é"}
    with serving(LOCAL, {path: probe(lambda path=path: problems[path]) for path in problems}) as port:  # type: ignore[misc]
        assert ask(port, "/healthz").status == 200
        ready = ask(port, "/readyz")
        assert (ready.status, ready.text) == (503, "not registered: é\n")
        assert ready.headers["Content-Length"] == str(len("not registered: é\n".encode()))
        problems["/readyz"] = ""
        assert ask(port, "/readyz").status == 200


async def test_what_belongs_to_the_event_loop_is_asked_there() -> None:
    """While whoever asks is in another thread."""
    seen: list[threading.Thread] = []

    async def check() -> str:
        assert asyncio.get_running_loop() is loop
        seen.append(threading.current_thread())
        return ""

    loop = asyncio.get_running_loop()
    with serving(LOCAL, {"/healthz": probe(in_loop(check))}) as port:
        assert (await asked(port, "/healthz")).status == 200
    assert seen == [threading.current_thread()]


async def test_a_loop_that_is_stuck_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes while the loop does nothing, and the next one is right again when it goes on."""

    async def fine() -> str:
        return ""

    monkeypatch.setattr(plugin_http, "LOOP_TIMEOUT", 0.6)
    with serving(LOCAL, {"/healthz": probe(in_loop(fine))}) as port:
        reply = ask(port, "/healthz")  # blocks the loop
        assert (reply.status, reply.text) == (503, "the event loop has not answered for 1 s\n")
        monkeypatch.setattr(plugin_http, "LOOP_TIMEOUT", 30.0)
        assert (await asked(port, "/healthz")).status == 200


def test_a_stuck_loop_is_found_before_a_probe_gives_up() -> None:
    """The manifests give probes more time than that."""
    assert plugin_http.LOOP_TIMEOUT == 2.0


def test_outside_a_loop_there_is_none_to_ask() -> None:
    """It is the loop that runs when the routes are made."""

    async def fine() -> str:
        return ""

    with pytest.raises(RuntimeError, match="no running event loop"):
        in_loop(fine)


# Paths and methods


def test_a_question_mark_and_what_follows_is_not_of_the_path() -> None:
    """Probes may add parameters."""
    with serving(LOCAL, {"/healthz": probe(nothing)}) as port:
        assert ask(port, "/healthz?verbose=1").status == 200


@pytest.mark.parametrize("path", ["/", "/healthz/", "/metrics", "/../healthz"])
def test_another_path_is_404_and_names_those_that_are_there(path: str) -> None:
    """Nothing is asked for it, and no file of the host is looked for."""
    with serving(LOCAL, {"/healthz": probe(nothing), "/readyz": probe(nothing)}) as port:
        reply = ask(port, path)
    assert (reply.status, reply.text) == (404, "not found\n")


def test_head_is_answered_as_get_without_the_body() -> None:
    """With the same headers."""
    with serving(LOCAL, {"/": hello}) as port:
        get, head = ask(port, "/"), ask(port, "/", "HEAD")
        assert raw(port, b"HEAD / HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\n")
    assert head.status == 200
    assert {**head.headers, "Date": ""} == {**get.headers, "Date": ""}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_another_method_is_405(method: str) -> None:
    """There is nothing to change."""
    with serving(LOCAL, {"/": hello}) as port:
        reply = ask(port, "/", method)
    assert (reply.status, reply.text) == (405, "only GET and HEAD are supported\n")
    assert reply.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "request_", [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a\r\n" * 200]
)
def test_what_is_no_request_is_refused_in_a_line(request_: bytes) -> None:
    """Not with a page that repeats it."""
    with serving(LOCAL, {"/": hello}) as port:
        answer = raw(port, request_ + b"\r\n")
    assert b"<" not in answer
    assert answer.startswith((b"HTTP/1.0 400 ", b"HTTP/1.0 505 ", b"HTTP/1.0 431 "))


# Headers


@pytest.mark.parametrize(("path", "method"), [("/", "GET"), ("/other", "GET"), ("/", "POST"), ("/healthz", "GET")])
def test_a_browser_is_kept_from_doing_more_with_it(path: str, method: str) -> None:
    """Nothing from elsewhere, in no frame, for no other origin; whatever the answer is."""
    with serving(LOCAL, {"/": hello, "/healthz": probe(lambda: "ill")}) as port:
        headers = ask(port, path, method).headers
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
    ("host", "own", "known"),
    [
        ("127.0.0.1:9478", "127.0.0.1", True),
        ("10.1.2.3", "0.0.0.0", True),  # noqa: S104
        ("[::1]:9478", "::1", True),
        ("[fe80::1]", "::", True),
        ("localhost:9478", "127.0.0.1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("Node-7.example:9478", "node-7.example", True),
        ("node-7.example", "Node-7.Example", True),
        ("evil.example:9478", "127.0.0.1", False),
        ("evil.example", "node-7.example", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("localhost.evil.example", "127.0.0.1", False),
        ("2130706433", "127.0.0.1", False),
        ("[::1", "::1", False),
        ("", "127.0.0.1", False),
    ],
)
def test_names_that_lead_here(host: str, own: str, known: bool) -> None:  # noqa: FBT001
    """Addresses, localhost, and what --listen says; any other may be a stranger's that resolves to this host."""
    assert names_this_host(host, own) is known


def test_under_a_stranger_s_name_nothing_is_served() -> None:
    """The answer says what to do."""
    with serving(LOCAL, {"/": hello}) as port:
        reply = ask(port, "/", headers={"Host": "evil.example"})
        assert reply.status == 421
        assert reply.text.startswith("unknown host name 'evil.example': use an IP address")
        assert ask(port, "/", headers={"Host": f"localhost:{port}"}).status == 200
        assert raw(port, b"GET / HTTP/1.0\r\n\r\n").endswith(b"hello"), "who gives no name is no browser"


def test_its_own_name_is_known() -> None:
    """It is that of the address as it was given."""
    with serving(("localhost", 0), {"/": hello}) as port:
        assert ask(port, "/", headers={"Host": "localhost"}).status == 200


@pytest.mark.parametrize("known", ['W/"1-2"', '"1-2"', 'W/"0-1", W/"1-2"'])
def test_who_has_it_already_is_told_so_in_a_line(known: str) -> None:
    """304, without a body."""
    with serving(LOCAL, {"/": hello}) as port:
        assert ask(port, "/").headers["ETag"] == 'W/"1-2"'
        reply = ask(port, "/", headers={"If-None-Match": known})
    assert (reply.status, reply.body, reply.headers["ETag"]) == (304, b"", 'W/"1-2"')


@pytest.mark.parametrize("known", ['W/"1-1"', 'W/"11-2"', "", "1-2"])
def test_who_has_another_one_gets_it(known: str) -> None:
    """A tag is compared as a whole."""
    with serving(LOCAL, {"/": hello}) as port:
        reply = ask(port, "/", headers={"If-None-Match": known})
    assert (reply.status, reply.body) == (200, b"hello")


def test_what_has_no_tag_is_sent_each_time() -> None:
    """An empty tag in the request is none either."""
    with serving(LOCAL, {"/": lambda: Answer("text/plain", b"hello")}) as port:
        reply = ask(port, "/", headers={"If-None-Match": 'W/""'})
    assert reply.status == 200
    assert "ETag" not in reply.headers
    assert "Vary" not in reply.headers


@pytest.mark.parametrize("accepted", ["gzip", "br, gzip, deflate", "gzip;q=0.5", "deflate, gzip;q=1.0"])
def test_it_is_sent_packed_to_who_takes_that(accepted: str) -> None:
    """As browsers do."""
    with serving(LOCAL, {"/": much}) as port:
        reply = ask(port, "/", headers={"Accept-Encoding": accepted})
    assert reply.headers["Content-Encoding"] == "gzip"
    assert reply.headers["Vary"] == "Accept-Encoding"
    assert len(reply.body) == int(reply.headers["Content-Length"]) < 200
    assert len(gzip.decompress(reply.body)) == 10003


@pytest.mark.parametrize("accepted", ["", "identity", "gzip;q=0", "gzip;q=0.0", "br;q=1.0, xgzip", "gzipped"])
def test_it_is_unpacked_for_who_does_not(accepted: str) -> None:
    """Nothing is said of an encoding then."""
    with serving(LOCAL, {"/": much}) as port:
        reply = ask(port, "/", headers={"Accept-Encoding": accepted})
    assert "Content-Encoding" not in reply.headers
    assert reply.headers["Vary"] == "Accept-Encoding"
    assert len(reply.body) == int(reply.headers["Content-Length"]) == 10003


# Clients that may be anybody


def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    """Each connection has a thread of its own, which does not keep the end from coming."""
    with serving(LOCAL, {"/": hello}) as port, socket.create_connection(("127.0.0.1", port)):
        assert ask(port, "/").status == 200


def test_a_request_may_come_in_pieces() -> None:
    """It is waited for until it is whole."""
    with serving(LOCAL, {"/": hello}) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET / HTTP/1.0\r\nA: b\r\n\r\n":
            connection.sendall(bytes([byte]))
        assert b"".join(iter(lambda: connection.recv(4096), b"")).endswith(b"hello")


def test_a_client_that_dawdles_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busily it sends, its time is that of the whole request."""
    monkeypatch.setattr(plugin_http, "CLIENT_TIMEOUT", 0.2)
    with serving(LOCAL, {"/": hello}) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(0.01)
        received = None
        with contextlib.suppress(ConnectionError):
            while received is None:
                connection.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    received = connection.recv(1)
        assert not received


def test_a_client_that_sends_without_end_is_left() -> None:
    """After some kilobytes: they are kept in memory."""
    head = b"GET / HTTP/1.0\r\n" + b"A: b\r\n" * 90
    with serving(LOCAL, {"/": hello}) as port:
        assert raw(port, head + b"\r\n").endswith(b"hello")
        with contextlib.suppress(ConnectionError):  # it is told as a reset, where some is still under way
            assert raw(port, head + b"A: " + b"b" * 30_000 + b"\r\n\r\n") == b""


def test_a_request_that_took_long_leaves_as_long_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of the one time is not all there is of the other."""

    def late(connection: socket.socket, deadline: float) -> bytes:
        head = read_head(connection, deadline)
        connection.settimeout(0.001)
        return head

    monkeypatch.setattr(plugin_http, "read_head", late)
    with serving(LOCAL, {"/": lambda: Answer("text/plain", b"x" * 50_000_000)}) as port:
        assert len(ask(port, "/").body) == 50_000_000


def test_a_client_that_goes_away_is_no_event(caplog: pytest.LogCaptureFixture) -> None:
    """Neither in the middle of its request nor of the answer."""
    done = threading.Event()

    def large() -> Answer:
        done.set()
        return Answer("text/plain", b"x" * 50_000_000)

    with serving(LOCAL, {"/": large}) as port:
        for request in (b"GET", b"GET / HTTP/1.0\r\n\r\n"):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(request)
            if request != b"GET":
                done.wait(10)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # ends with a reset
            connection.close()
        assert ask(port, "/", "HEAD").status == 200
        until_alone()
    assert caplog.text == ""


def until_alone() -> None:
    """Wait until no connection's thread is left."""
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(10)


def test_few_are_served_at_a_time_and_the_newest_ones_are() -> None:
    """Whoever holds many connections ends their own, and keeps no probe away."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(serving(LOCAL, {"/": hello}))
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(connections.MAX_CONNECTIONS)
        ]
        assert ask(port, "/").status == 200
        assert idle[0].recv(1) == b"", "the oldest one had to go"
        for one in idle[1:]:
            one.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert one.recv(4) == b"HTTP"


def test_there_are_never_more_threads_than_that_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where those that were cut off don't end, newcomers are refused; and served again once they have."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
    go, entered = threading.Event(), threading.Semaphore(0)

    def hanging() -> Answer:
        entered.release()
        go.wait(30)
        return hello()

    with contextlib.ExitStack() as stack:
        port = stack.enter_context(serving(LOCAL, {"/": hanging, "/hello": hello}))
        hung = []
        for _ in range(4):
            hung.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=8)))
            hung[-1].sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert entered.acquire(timeout=10)
        assert [one.recv(1) for one in hung[:2]] == [b"", b""], "each newcomer ends another one"
        with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
            ask(port, "/hello")
        go.set()
        until_alone()
        assert ask(port, "/hello").status == 200


def test_a_fault_of_ours_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With the traceback; the next request is served."""

    def broken() -> Answer:
        raise ValueError("a fault")

    with serving(LOCAL, {"/": broken, "/hello": hello}) as port:
        assert raw(port, b"GET / HTTP/1.0\r\n\r\n") == b""
        assert ask(port, "/hello").status == 200
        until_alone()
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "HTTP request failed")
    assert "a fault" in caplog.text


def test_nothing_is_logged_of_a_probe(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """A probe a second is no event."""
    with serving(LOCAL, {"/": hello}) as port:
        for path in ("/", "/other"):
            ask(port, path)
        ask(port, "/", "POST")
    assert capsys.readouterr() == ("", "")
    assert caplog.text == ""


# From the beginning to the end


def test_at_the_end_nobody_listens_and_no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the context ends with an error; the end waits for the thread, and for no client."""
    waited_for: list[str] = []
    join = threading.Thread.join

    def noted(thread: threading.Thread, timeout: float | None = None) -> None:
        waited_for.append(thread.name)
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", noted)
    context = serving(LOCAL, {"/": hello})
    port = context.__enter__()
    with socket.create_connection(("127.0.0.1", port), timeout=8) as idle:
        assert "http" in {thread.name for thread in threading.enumerate()}
        ask(port, "/")
        assert not context.__exit__(ValueError, ValueError("over"), None)
        assert idle.recv(1) == b"", "it is cut off"
    assert "http" not in {thread.name for thread in threading.enumerate()}
    assert waited_for == ["http"]
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/")


def test_the_address_can_be_had_again_at_once() -> None:
    """After a change of the configuration the plugin serves at the same one."""
    with serving(LOCAL, {"/": hello}) as port:
        ask(port, "/")
    with serving(("127.0.0.1", port), {"/": hello}) as again:
        assert again == port
        assert ask(port, "/").status == 200


def test_an_address_that_is_taken_is_an_error() -> None:
    """The text has the address and the system's reason."""
    with (
        serving(LOCAL, {}) as port,
        pytest.raises(ServiceError, match=rf"cannot listen on 127.0.0.1:{port}: .*in use; set another --listen"),
        serving(("127.0.0.1", port), {}),
    ):
        pass


def test_an_address_that_is_not_this_machine_s_is_an_error() -> None:
    """192.0.2.0/24 is for documentation, and nobody's."""
    with pytest.raises(ServiceError, match=r"cannot listen on 192\.0\.2\.1:0"), serving(("192.0.2.1", 0), {}):
        pass


def test_an_ipv6_address_is_served() -> None:
    """Told by its colons."""
    try:
        with socket.socket(socket.AF_INET6) as free:
            free.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serving(("::1", 0), {"/": hello}) as port:
        assert ask(port, "/", host="::1").status == 200


def test_nobody_is_asked_what_this_host_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name service may be what is broken."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("asked"))
    with serving(LOCAL, {"/": hello}) as port:
        assert ask(port, "/").status == 200


# The page's files


@pytest.fixture
def page_port() -> Iterator[int]:
    """Serve the page."""
    with serving(LOCAL, page.routes()) as port:
        yield port


def test_every_file_that_the_page_names_is_there(page_port: int) -> None:
    """And every file that is there is named by one that is."""
    todo, seen = ["/"], set[str]()
    while todo:
        path = todo.pop()
        seen.add(path)
        text = ask(page_port, path).text
        named = re.findall(r'(?:href|src)="(page/[^"]+)"', text) + [
            f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', text)
        ]
        todo += [f"/{name}" for name in named if f"/{name}" not in seen]
        assert ask(page_port, path).status == HTTPStatus.OK
    assert seen == set(page.routes())


def test_a_file_that_was_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever packed the plugin has to know which one it is."""
    monkeypatch.setattr(pkgutil, "get_data", lambda *_: None)
    with pytest.raises(FileNotFoundError, match=r"page has no index\.html"):
        page.routes()["/"]()


def test_a_file_has_its_type_and_a_tag(page_port: int) -> None:
    """The type is what makes a browser take it, with nosniff."""
    types: dict[str, str] = {}
    tags: set[str] = set()
    for path in page.routes():
        reply = ask(page_port, path)
        types[path.rpartition(".")[2]] = reply.headers["Content-Type"]
        tags.add(reply.headers["ETag"])
        assert ask(page_port, path, headers={"If-None-Match": reply.headers["ETag"]}).status == 304
    assert types == {
        "/": "text/html; charset=utf-8",
        "css": "text/css; charset=utf-8",
        "js": "text/javascript; charset=utf-8",
        "svg": "image/svg+xml",
    }
    assert len(tags) == len(page.routes())


def test_the_page_asks_for_nothing_from_elsewhere(page_port: int) -> None:
    """No address of another host is in it, nor anything that its own policy would keep from being run."""
    for path in page.routes():
        text = ask(page_port, path).text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import", text)
        assert not re.search(r"<script>|<style|\sstyle=|\son\w+=|innerHTML|insertAdjacentHTML|eval\(", text), path


def luminance(colour: str) -> float:
    """Return how light a colour is, as WCAG 2 has it."""
    digits = colour.removeprefix("#")
    parts = [
        int(part, 16) / 255 for part in re.findall("..", digits if len(digits) == 6 else re.sub("(.)", r"\1\1", digits))
    ]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return how much two colours differ: from 1 to 21."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_what_is_written_and_drawn_can_be_made_out(page_port: int, theme: int) -> None:
    """4.5 for text, 3 for what is drawn or large (WCAG 2, AA); free cells are told by what they are not."""
    style = ask(page_port, "/page/page.css").text
    themes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colour = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6});", themes[theme]))
    for text in ("text", "muted", "accent"):
        for ground in ("surface", "ground", "raised"):
            assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
    for kind in ("good", "bad", "note"):
        assert contrast(colour[kind], colour[f"{kind}-soft"]) >= 4.5, kind
    for state in ("allocated", "unhealthy", "leaked", "unknown"):
        assert contrast(colour[state], colour["surface"]) >= 3, state
