"""Parsers and validators of single values."""

from __future__ import annotations

import re

import pytest

from aosp_plugin.config.keys import KEYS
from aosp_plugin.config.values import is_set_pattern, normalised, shared_path
from aosp_plugin.framework.errors import ConfigError
from aosp_plugin.framework.service.address import listen_address


@pytest.mark.parametrize(
    ("text", "host", "container"),
    [
        ("/a", "/a", "/a"),
        ("/a:/b", "/a", "/b"),
        ("binderfs:/dev/binderfs", "binderfs", "/dev/binderfs"),
    ],
)
def test_shared_path_has_a_host_path_and_a_container_path(text: str, host: str, container: str) -> None:
    assert shared_path(text) == (host, container)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/a:",
        "/a:/b:rw",
        "/a:/b:",
        "/a::rw",
        "binderfs:/b:ro",
        "::",
        "a",
        "a:/b",
        "/a:b",
        ":/b",
        "binderfs",
        "binderfs:",
        "binderfs/x:/b",
    ],
)
def test_invalid_shared_path_is_rejected(text: str) -> None:
    """The binderfs requires a path in the container."""
    with pytest.raises(ConfigError, match=f"^x: .*{re.escape(text)}.* is not allowed; allowed: a list of HOST"):
        KEYS["shared_mounts"].setting([text], "x")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", None),
        ("127.0.0.1:9478", ("127.0.0.1", 9478)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("[::]:1", ("::", 1)),
    ],
)
def test_listen_address_is_a_host_and_a_port(text: str, address: tuple[str, int] | None) -> None:
    assert listen_address(text) == address


@pytest.mark.parametrize(
    "pattern", ["{set}/{name}", "{set}{name}", "aosp_{set}_{name}", "a{set}/b{name}c", "{set}.{name}"]
)
def test_set_pattern_is_valid(pattern: str) -> None:
    """The device sets share a directory, or each has its own."""
    assert is_set_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "{set}",
        "{name}",
        "{set}{set}{name}",
        "{name}/{set}",
        "{set}{name}/x",
        "x/{set}{name}",
        "{set}/{name}/{name}",
        "{set}/{name}{name}",
        "{set}{set}/{name}",
        "{set}/x/{name}",
        "/{set}{name}",
        "{set}{name}/",
        "{set}//{name}",
        "../{set}{name}",
        "{set}{name}/..",
        "./{set}{name}",
        "{set} {name}",
        "{set},{name}",
        "{set}\n{name}",
        "{set}{name}{number}",
        "{{set}}{name}",
        "{set}{name}{",
        "x}{set}{name}",
        "{set}{name}" + "x" * 63,
    ],
)
def test_invalid_set_pattern_is_rejected(pattern: str) -> None:
    """Set and name occur once, with at most one slash, and the path does not leave the device directory."""
    assert not is_set_pattern(pattern)


@pytest.mark.parametrize("path", ["/dev", "//dev", "///dev/", "/./dev/x/..", "/../dev"])
def test_normalised_path_is_unique(path: str) -> None:
    assert normalised(path) == "/dev"
