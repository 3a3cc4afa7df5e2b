"""Keys whose value is a mapping with keys of its own, and what does not go together with them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.config import NamedSets, Nodes, NumberedSets, Recreate, load
from aosp_plugin.config.cross_field import name_of_both
from aosp_plugin.errors import ConfigError
from tests.unit.config.tables import loaded, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("{size: 1}", NumberedSets(size=1)),
        ("{size: 64, stride: 1, first: 0}", NumberedSets(size=64, stride=1, first=0)),
        ("{first: 999999999, stride: 999999999, size: 3}", NumberedSets(size=3, stride=999999999, first=999999999)),
        ("{size: 3, stride: null}", NumberedSets(size=3, stride=None)),
        ("{names: [binder]}", NamedSets(names=("binder",), pattern="{set}/{name}")),
        ("{pattern: '{name}.{set}', names: [a, b]}", NamedSets(names=("a", "b"), pattern="{name}.{set}")),
        ("null", None),
    ],
)
def test_sets_have_numbers_or_names(text: str, sets: NumberedSets | NamedSets | None, file: Path) -> None:
    """What is left out is the default."""
    assert loaded(file, f"sets: {text}").resources[0].sets == sets


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("{ensure: 1048576}", Nodes(ensure=1048576)),
        ("{ensure: 1, max: 2}", Nodes(ensure=1, max=2)),
        ("{ensure: 2, max: null, directory: /x, first: 7}", Nodes(ensure=2, directory="/x", first=7)),
        ("null", None),
    ],
)
def test_nodes_have_a_number_of_them(text: str, nodes: Nodes | None, file: Path) -> None:
    """What is left out is the default."""
    assert loaded(file, f"nodes: {text}").resources[0].nodes == nodes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sets: {size: 0}", "sets.size: 0 is not allowed; allowed: a number from 1 to 64"),
        ("sets: {size: 65}", "sets.size: 65 is not allowed; allowed: a number from 1 to 64"),
        ("sets: {size: true}", "sets.size: True is not allowed; allowed: a number from 1 to 64"),
        ("sets: {size: null}", "sets.size: None is not allowed; allowed: a number from 1 to 64"),
        ("sets: {size: 3, stride: 0}", "sets.stride: 0 is not allowed; allowed: a number from 1 to 999999999, or null"),
        ("sets: {size: 3, stride: 1000000000}", "sets.stride: 1000000000 is not allowed"),
        ("sets: {size: 3, first: -1}", "sets.first: -1 is not allowed; allowed: a number from 0 to 999999999"),
        ("sets: {size: 3, first: 1000000000}", "sets.first: 1000000000 is not allowed"),
        ("sets: {size: 3, step: 1}", "sets.step: there is no such key; the keys are first, names, pattern, size, "),
        ("sets: {size: 3, 1: 1}", "sets.1: there is no such key; "),
        ("sets: {stride: 3}", "sets.size: it is missing; allowed: a number from 1 to 64"),
        ("sets: {pattern: '{set}{name}'}", "sets.names: it is missing; allowed: a list of names of nodes, each once"),
        ("sets: {names: []}", "sets.names: [] is not allowed; allowed: a list of names of nodes, each once"),
        ("sets: {names: binder}", "sets.names: 'binder' is not allowed"),
        ("sets: {names: [a, a]}", "sets.names: ['a', 'a'] is not allowed"),
        ("sets: {names: [a, '']}", "sets.names: ['a', ''] is not allowed"),
        ("sets: {names: [a/b]}", "sets.names: ['a/b'] is not allowed"),
        ("sets: {names: [a], pattern: x}", "sets.pattern: 'x' is not allowed; allowed: a file with {set} and {na"),
        ("nodes: {ensure: 0}", "nodes.ensure: 0 is not allowed; allowed: a number from 1 to 1048576"),
        ("nodes: {ensure: 1048577}", "nodes.ensure: 1048577 is not allowed"),
        ("nodes: {ensure: 1, max: 0}", "nodes.max: 0 is not allowed; allowed: a number from 1 to 1048576, or null"),
        ("nodes: {ensure: 1, max: 1048577}", "nodes.max: 1048577 is not allowed"),
        ("nodes: {ensure: 1, directory: run}", "nodes.directory: 'run' is not allowed; allowed: an absolute path"),
        ('nodes: {ensure: 1, directory: "/\\n"}', "nodes.directory: '/\\n' is not allowed; allowed: an absolute path"),
        ("nodes: {ensure: 1, first: -1}", "nodes.first: -1 is not allowed; allowed: a number from 0 to 999999999"),
        ("nodes: {ensure: 1, first: 1000000000}", "nodes.first: 1000000000 is not allowed"),
        ("nodes: {max: 5}", "nodes.ensure: it is missing; allowed: a number from 1 to 1048576"),
        ("nodes: {count: 5}", "nodes.count: there is no such key; the keys are directory, ensure, first, max"),
    ],
)
def test_a_bad_part_is_told_with_its_place(text: str, why: str, file: Path) -> None:
    """As a key is: where it stands, what it says and what it may say."""
    with pytest.raises(ConfigError, match=f"^{re.escape(f'file {file}: {why}')}"):
        loaded(file, text)


def test_renewed_nodes_have_one_container(file: Path) -> None:
    """Both sources are told, and the reason; either alone is allowed."""
    path = write(file, "version: v1\nrecreate: on-start\n")
    with pytest.raises(ConfigError) as raised:
        load({}, {"AOSP_PLUGIN_REPLICAS": "2"}, path)
    assert str(raised.value) == (
        f"file {path}: recreate: on-start conflicts with 2 replicas (variable AOSP_PLUGIN_REPLICAS): starting one "
        "container would take the devices of another; allowed: recreate never, or 1 replica"
    )
    assert load({}, {"AOSP_PLUGIN_REPLICAS": "1"}, path)[0].resources[0].recreate is Recreate.ON_START
    assert loaded(file, "replicas: 2").resources[0].replicas == 2


def test_keys_are_compared_as_they_are_in_the_end(file: Path) -> None:
    """A file that would be wrong alone is right where a variable wins over the wrong half of it."""
    path = write(file, "version: v1\nrecreate: on-start\nreplicas: 2\n")
    assert load({}, {"AOSP_PLUGIN_RECREATE": "never"}, path)[0].resources[0].replicas == 2


def test_made_nodes_have_no_names(file: Path) -> None:
    """They have numbers, which named sets don't know."""
    with pytest.raises(ConfigError) as raised:
        loaded(file, "sets: {names: [binder]}\nresources: [{nodes: {ensure: 3}}]")
    assert str(raised.value) == (
        f"file {file}: resources[0].nodes: the nodes that are made have numbers, and the sets have names (file {file}: "
        "sets); make them in another way, or give the sets a size"
    )
    assert loaded(file, "sets: {size: 3}\nnodes: {ensure: 3}").resources[0].nodes == Nodes(ensure=3)


def test_made_nodes_have_names_that_a_device_can_have(file: Path) -> None:
    """The longest is that of the last number."""
    text = f"device_prefix: {'x' * 61}\nnodes: {{ensure: 91, first: %d}}"
    assert loaded(file, text % 9).resources[0].device_prefix == "x" * 61
    with pytest.raises(ConfigError, match=f"^file {file}: nodes: 'x+100' can't be a node's name .* at most 63$"):
        loaded(file, text % 10)


@pytest.mark.parametrize(("limit", "needed"), [(1, 2), (9, 10)])
def test_a_binderfs_has_room_for_one_node_more(limit: int, needed: int, file: Path) -> None:
    """A node is renewed through it."""
    with pytest.raises(ConfigError) as raised:
        loaded(file, f"nodes: {{ensure: {limit}, max: {limit}}}")
    assert str(raised.value) == (
        f"file {file}: nodes: max {limit} is too small for the binderfs /run/aosp-binderfs: {limit} nodes, and one "
        f"more through which a node is renewed; allowed: {needed} or more, or no max"
    )
    assert loaded(file, f"nodes: {{ensure: {limit}, max: {needed}}}").resources[0].nodes == Nodes(
        ensure=limit, max=needed
    )


TWO = "resources:\n- {resource_name: a.io/x, device_prefix: x, nodes: %s}\n- {device_prefix: y, nodes: %s}"


def test_resources_that_share_a_binderfs_share_its_room(file: Path) -> None:
    """Its max= is one, for the nodes of all of them."""
    assert len(loaded(file, TWO % ("{ensure: 4, max: 10}", "{ensure: 5, max: 10}")).resources) == 2
    with pytest.raises(ConfigError, match=r"resources\[0\].nodes; file .*: resources\[1\].nodes: max 10 is too small"):
        loaded(file, TWO % ("{ensure: 5, max: 10}", "{ensure: 5, max: 10}"))
    for other in ("{ensure: 4}", "{ensure: 4, max: 99, directory: //run/aosp-binderfs/}"):
        with pytest.raises(ConfigError, match="the binderfs /run/aosp-binderfs has one max; give it to each of them"):
            loaded(file, TWO % ("{ensure: 5, max: 10}", other))
    assert len(loaded(file, TWO % ("{ensure: 5, max: 6}", "{ensure: 5, directory: /x}")).resources) == 2


def test_a_node_is_made_for_one_resource(file: Path) -> None:
    """Two device directories with links into one binderfs would lead to the same node."""
    text = (
        "resources:\n- {resource_name: a.io/x, device_dir: /a, nodes: {ensure: 20, directory: /run//aosp-binderfs/}}\n"
        "- {device_prefix: aosp_binder1, nodes: {ensure: 5, first: %s}}"
    )
    with pytest.raises(ConfigError, match="aosp_binder19 in the binderfs /run/aosp-binderfs is made for both"):
        loaded(file, text % "9, directory: //run/./aosp-binderfs")
    assert len(loaded(file, text % "10").resources) == 2
    assert len(loaded(file, text % "0, directory: /run/other").resources) == 2
    with pytest.raises(ConfigError) as raised:
        loaded(file, text % "8")
    assert str(raised.value) == (
        f"file {file}: resources[0] and resources[1]: aosp_binder18 in the binderfs /run/aosp-binderfs is made for "
        "both, a.io/x and aosp.io/binder; give each a nodes.directory or a device_prefix of its own, or numbers that "
        "the other's nodes don't have"
    )


@pytest.mark.parametrize(("one", "other"), [("null", "{ensure: 5}"), ("{ensure: 5}", "null"), ("null", "null")])
def test_one_resource_may_have_its_nodes_made_and_another_not(one: str, other: str, file: Path) -> None:
    """Each on its own."""
    assert len(loaded(file, TWO % (one, other)).resources) == 2


PREFIXES = st.sampled_from(["x", "x1", "x12", "x0", "xy"])
NUMBERS = st.builds(lambda first, count: range(first, first + count), st.integers(0, 130), st.integers(1, 12))


@given(PREFIXES, NUMBERS, PREFIXES, NUMBERS)
@settings(derandomize=True, deadline=None, max_examples=1000)
def test_a_name_of_both_is_found_where_there_is_one(prefix: str, numbers: range, other: str, more: range) -> None:
    """Against all names of both, written out."""
    common = {f"{prefix}{number}" for number in numbers} & {f"{other}{number}" for number in more}
    found = name_of_both(prefix, numbers, other, more)
    assert found in common if common else found is None


@pytest.mark.parametrize(
    ("prefix", "numbers", "other", "more", "name"),
    [
        ("x", range(15, 16), "x1", range(5, 6), "x15"),
        ("x", range(105, 106), "x1", range(5, 6), None),
        ("x", range(10, 11), "x1", range(1), "x10"),
        ("x", range(110, 111), "x1", range(10, 11), "x110"),
        ("x", range(100, 101), "x1", range(1), None),
        ("x", range(19, 20), "x1", range(9, 10), "x19"),
        ("x", range(20, 21), "x1", range(10, 11), None),
        ("x", range(5, 6), "x", range(6, 7), None),
        ("x", range(5, 7), "x", range(6, 7), "x6"),
        ("x", range(10), "x0", range(10), None),
    ],
)
def test_a_number_may_be_part_of_a_prefix(
    prefix: str, numbers: range, other: str, more: range, name: str | None
) -> None:
    """x1 with 5 is x with 15, whichever comes first; no number begins with 0."""
    assert name_of_both(prefix, numbers, other, more) == name
    assert name_of_both(other, more, prefix, numbers) == name


def test_names_with_many_digits_are_compared() -> None:
    """The largest numbers that the nodes of a resource can have."""
    assert name_of_both("x", range(1000000000, 1000000001), "x", range(999999999, 1000000009)) == "x1000000000"
