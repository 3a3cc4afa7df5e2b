"""What single values mean that are text, and which texts are none of them."""

from __future__ import annotations

import re

import pytest

from aosp_plugin.binder.devices.edits import SharedPath
from aosp_plugin.config import listen_address, load, shared_path
from aosp_plugin.config.values import are_node_names, is_set_pattern, normalised
from aosp_plugin.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "container"),
    [
        ("/a", "/a", "/a"),
        ("/a:/b", "/a", "/b"),
        ("/a:", "/a", "/a"),
        ("binderfs:/dev/binderfs", "binderfs", "/dev/binderfs"),
    ],
)
def test_a_shared_path_is_the_host_s_and_where_the_container_finds_it(text: str, host: str, container: str) -> None:
    """At the same place, unless another one is given."""
    assert shared_path(text) == SharedPath(host, container)


@pytest.mark.parametrize("text", ["", "a", "a:/b", "/a:b", ":/b", "binderfs", "binderfs:", "binderfs/x:/b"])
def test_a_shared_path_is_absolute_or_the_own_binderfs(text: str) -> None:
    """The own binderfs has no path of its own that a container could find it at."""
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        shared_path(text)


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
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int] | None) -> None:
    """An IPv6 address stands in brackets."""
    assert listen_address(text) == address


def test_port_zero_and_the_last_port_are_allowed() -> None:
    """Zero lets the system choose, as tests do."""
    for listen in ("127.0.0.1:0", "[::1]:65535"):
        assert load({"listen": listen}, {}, None)[0].listen == listen


@pytest.mark.parametrize("text", ["a:1_0", "a:\uff11", "a:-1", "a:65536", "a:", ":1"])
def test_a_port_is_a_number_in_plain_digits(text: str) -> None:
    """What int() takes beyond that is most likely a mistake."""
    with pytest.raises(ConfigError, match="flag --listen"):
        load({"listen": text}, {}, None)


@pytest.mark.parametrize(
    "pattern", ["{set}/{name}", "{set}{name}", "aosp_{set}_{name}", "a{set}/b{name}c", "{set}.{name}"]
)
def test_a_pattern_makes_a_name_of_a_set_and_a_node(pattern: str) -> None:
    """In one directory for all sets, or in one for each."""
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
def test_a_pattern_leads_nowhere_else(pattern: str) -> None:
    """Each of set and name once, one slash at most, no dots for a directory, and nothing that is left unfilled."""
    assert not is_set_pattern(pattern)


def test_names_of_a_set_are_names_of_nodes() -> None:
    """Each of them once."""
    assert are_node_names(["binder", "hwbinder"])
    assert not are_node_names(["binder", "binder"])
    assert not are_node_names(["binder", "a/b"])
    assert not are_node_names(["binder", "binder-control"])


@pytest.mark.parametrize("path", ["/dev", "//dev", "///dev/", "/./dev/x/..", "/../dev"])
def test_a_directory_has_one_spelling(path: str) -> None:
    """Two slashes at the beginning are one, which they are not for every system."""
    assert normalised(path) == "/dev"
