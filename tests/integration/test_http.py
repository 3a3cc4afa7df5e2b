"""/healthz and /readyz over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading
from typing import NamedTuple

import pytest

from aosp_plugin.errors import HostError
from aosp_plugin.operate import http as plugin_http
from aosp_plugin.operate.http import serving

LOCAL = ("127.0.0.1", 0)


class Answer(NamedTuple):
    """What came back."""

    status: int
    text: str
    headers: dict[str, str]


def ask(port: int, path: str, method: str = "GET", host: str = "127.0.0.1") -> Answer:
    """Ask, and block until the answer is there."""
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=30)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return Answer(response.status, response.read().decode(), dict(response.getheaders()))


async def asked(port: int, path: str, method: str = "GET", host: str = "127.0.0.1") -> Answer:
    """Ask, while the event loop goes on."""
    return await asyncio.to_thread(ask, port, path, method, host)


def nothing() -> str:
    """Say that nothing is wrong."""
    return ""


async def test_nothing_wrong_is_200() -> None:
    """With a line of text, and nothing of the interpreter."""
    with serving(LOCAL, {"/healthz": nothing}) as port:
        answer = await asked(port, "/healthz")
    assert (answer.status, answer.text) == (200, "ok\n")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["Content-Length"] == "3"
    assert answer.headers["Server"] == "aosp-plugin"


async def test_what_is_wrong_is_503_with_the_reason() -> None:
    """Each path by itself, and each time anew."""
    problems = {"/healthz": "", "/readyz": "not registered: é"}
    with serving(LOCAL, {path: lambda path=path: problems[path] for path in problems}) as port:  # type: ignore[misc]
        assert (await asked(port, "/healthz")).status == 200
        ready = await asked(port, "/readyz")
        assert (ready.status, ready.text) == (503, "not registered: é\n")
        assert ready.headers["Content-Length"] == str(len("not registered: é\n".encode()))
        problems["/readyz"] = ""
        assert (await asked(port, "/readyz")).status == 200


async def test_a_question_mark_and_what_follows_is_not_of_the_path() -> None:
    """Probes may add parameters."""
    with serving(LOCAL, {"/healthz": nothing}) as port:
        assert (await asked(port, "/healthz?verbose=1")).status == 200


@pytest.mark.parametrize("path", ["/", "/healthz/", "/metrics"])
async def test_another_path_is_404_and_names_those_that_are_there(path: str) -> None:
    """Nothing is asked for it."""
    with serving(LOCAL, {"/healthz": nothing, "/readyz": nothing}) as port:
        answer = await asked(port, path)
    assert (answer.status, answer.text) == (404, "there is /healthz and /readyz\n")


async def test_another_method_is_refused() -> None:
    """There is nothing to post."""
    with serving(LOCAL, {"/healthz": nothing}) as port:
        assert (await asked(port, "/healthz", "POST")).status == 501


async def test_the_question_is_put_in_the_event_loop() -> None:
    """What it looks at belongs to the loop."""
    seen: list[threading.Thread] = []

    def check() -> str:
        assert asyncio.get_running_loop() is loop
        seen.append(threading.current_thread())
        return ""

    loop = asyncio.get_running_loop()
    with serving(LOCAL, {"/healthz": check}) as port:
        assert (await asked(port, "/healthz")).status == 200
    assert seen == [threading.current_thread()]


async def test_a_loop_that_is_stuck_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes while the loop does nothing, and the next one is right again when it goes on."""
    monkeypatch.setattr(plugin_http, "ANSWER_WITHIN", 0.6)
    with serving(LOCAL, {"/healthz": nothing}) as port:
        answer = ask(port, "/healthz")  # blocks the loop
        assert (answer.status, answer.text) == (503, "the event loop has not answered for 1 s\n")
        monkeypatch.setattr(plugin_http, "ANSWER_WITHIN", 30.0)
        assert (await asked(port, "/healthz")).status == 200


def test_a_stuck_loop_is_found_before_a_probe_gives_up() -> None:
    """The manifests give probes more time than that."""
    assert plugin_http.ANSWER_WITHIN == 2.0


async def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    """Each connection has a thread of its own, which does not keep the end from coming."""
    with serving(LOCAL, {"/healthz": nothing}) as port, socket.create_connection(("127.0.0.1", port)):
        assert (await asked(port, "/healthz")).status == 200


async def test_nothing_is_logged_of_a_probe(capsys: pytest.CaptureFixture[str]) -> None:
    """A probe a second is no event."""
    with serving(LOCAL, {"/healthz": nothing}) as port:
        await asked(port, "/healthz")
        await asked(port, "/other")
    assert capsys.readouterr() == ("", "")


async def test_at_the_end_nobody_listens_and_no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the context ends with an error; the end waits for the thread."""
    waited_for: list[str] = []
    join = threading.Thread.join

    def noted(thread: threading.Thread, timeout: float | None = None) -> None:
        waited_for.append(thread.name)
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", noted)
    context = serving(LOCAL, {"/healthz": nothing})
    port = context.__enter__()
    assert "http" in {thread.name for thread in threading.enumerate()}
    assert not context.__exit__(ValueError, ValueError("over"), None)
    assert "http" not in {thread.name for thread in threading.enumerate()}
    assert waited_for == ["http"]
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/healthz")


async def test_the_address_can_be_had_again_at_once() -> None:
    """After a change of the configuration the plugin serves at the same one."""
    with serving(LOCAL, {"/healthz": nothing}) as port:
        await asked(port, "/healthz")
    with serving(("127.0.0.1", port), {"/healthz": nothing}) as again:
        assert again == port
        assert (await asked(port, "/healthz")).status == 200


async def test_an_address_that_is_taken_is_an_error() -> None:
    """The text has the address and the system's reason."""
    with (
        serving(LOCAL, {}) as port,
        pytest.raises(HostError, match=rf"can't listen on 127.0.0.1:{port} for /healthz and /readyz: .*in use"),
        serving(("127.0.0.1", port), {}),
    ):
        pass


async def test_an_address_that_is_not_this_machine_s_is_an_error() -> None:
    """192.0.2.0/24 is for documentation, and nobody's."""
    with pytest.raises(HostError, match=r"can't listen on 192\.0\.2\.1:0"), serving(("192.0.2.1", 0), {}):
        pass


async def test_an_ipv6_address_is_served() -> None:
    """Told by its colons."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serving(("::1", 0), {"/healthz": nothing}) as port:
        assert (await asked(port, "/healthz", host="::1")).status == 200


def test_it_is_served_from_within_a_running_loop() -> None:
    """Without one there is nobody to ask."""
    with pytest.raises(RuntimeError, match="no running event loop"), serving(LOCAL, {}):
        pass
