"""The names of a host under which browsers reach the page."""

import pytest

from aosp_plugin.framework.service.http import is_own_host


@pytest.mark.parametrize(
    ("host", "own", "expected"),
    [
        ("127.0.0.1:9478", "127.0.0.1", True),
        ("10.1.2.3", "0.0.0.0", True),  # noqa: S104
        ("[::1]:9478", "::1", True),
        ("[fe80::1]", "::", True),
        ("localhost:9478", "127.0.0.1", True),
        ("localhost.:9478", "127.0.0.1", True),
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
def test_host_header_must_name_this_host(host: str, own: str, *, expected: bool) -> None:
    """Addresses, localhost and the name of the server are accepted. Other names may be rebound to this host."""
    assert is_own_host(host, {"localhost", own.lower()}) is expected
