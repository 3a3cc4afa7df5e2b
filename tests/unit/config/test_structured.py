"""Keys whose value is a mapping with keys of its own, and what does not go together with them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.config import NamedSets, NumberedSets, Provision, Recreate, load
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
    ("text", "provision"),
    [
        ("{count: 1048576}", Provision(count=1048576)),
        ("{count: 1, max: 2}", Provision(count=1, max=2)),
        ("{count: 2, max: null, directory: /x, first: 7}", Provision(count=2, directory="/x", first=7)),
        ("null", None),
    ],
)
def test_provision_is_read_from_a_mapping(text: str, provision: Provision | None, file: Path) -> None:
    """What is left out is the default."""
    assert loaded(file, f"provision: {text}").resources[0].provision == provision


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
        ("provision: {count: 0}", "provision.count: 0 is not allowed; allowed: a number from 1 to 1048576"),
        ("provision: {count: 1048577}", "provision.count: 1048577 is not allowed"),
        (
            "provision: {count: 1, max: 0}",
            "provision.max: 0 is not allowed; allowed: a number from 1 to 1048576, or null",
        ),
        ("provision: {count: 1, max: 1048577}", "provision.max: 1048577 is not allowed"),
        (
            "provision: {count: 1, directory: run}",
            "provision.directory: 'run' is not allowed; allowed: an absolute",
        ),
        (
            'provision: {count: 1, directory: "/\\n"}',
            "provision.directory: '/\\n' is not allowed; allowed: ",
        ),
        (
            "provision: {count: 1, first: -1}",
            "provision.first: -1 is not allowed; allowed: a number from 0 to ",
        ),
        ("provision: {count: 1, first: 1000000000}", "provision.first: 1000000000 is not allowed"),
        ("provision: {max: 5}", "provision.count: it is missing; allowed: a number from 1 to 1048576"),
        ("provision: {ensure: 5}", "provision.ensure: there is no such key; the keys are count, directory, first, max"),
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


def test_provision_is_refused_with_named_sets(file: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(file, "sets: {names: [binder]}\nresources: [{provision: {count: 3}}]")
    assert str(raised.value) == (
        f"file {file}: resources[0].provision: provisioned binder devices have numbers, and the device sets have names "
        f"(file {file}: sets): give the sets a size, or create the binder devices in another way"
    )
    assert loaded(file, "sets: {size: 3}\nprovision: {count: 3}").resources[0].provision == Provision(count=3)


def test_provision_with_too_long_names_is_refused(file: Path) -> None:
    text = f"device_prefix: {'x' * 61}\nprovision: {{count: 91, first: %d}}"
    assert loaded(file, text % 9).resources[0].device_prefix == "x" * 61
    with pytest.raises(
        ConfigError, match=f"^file {file}: provision: 'x+100' is not a valid device name .* at most 63$"
    ):
        loaded(file, text % 10)


@pytest.mark.parametrize(("limit", "needed"), [(1, 2), (9, 10)])
def test_provision_max_leaves_room_for_recreation(limit: int, needed: int, file: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(file, f"provision: {{count: {limit}, max: {limit}}}")
    assert str(raised.value) == (
        f"file {file}: provision: max {limit} is too small for the binderfs /run/aosp-binderfs/devices: {limit} binder "
        f"devices, and one more to recreate them; allowed: {needed} or more, or no max"
    )
    assert loaded(file, f"provision: {{count: {limit}, max: {needed}}}").resources[0].provision == Provision(
        count=limit, max=needed
    )


TWO = "resources:\n- {resource_name: a.io/x, device_prefix: x, provision: %s}\n- {device_prefix: y, provision: %s}"


def test_resources_that_share_a_binderfs_share_its_max(file: Path) -> None:
    assert len(loaded(file, TWO % ("{count: 4, max: 10}", "{count: 5, max: 10}")).resources) == 2
    with pytest.raises(
        ConfigError, match=r"resources\[0\].provision; .*: resources\[1\].provision: max 10 is too small"
    ):
        loaded(file, TWO % ("{count: 5, max: 10}", "{count: 5, max: 10}"))
    for other in ("{count: 4}", "{count: 4, max: 99, directory: //run/aosp-binderfs/devices/}"):
        with pytest.raises(ConfigError, match="the binderfs /run/aosp-binderfs/devices has one max"):
            loaded(file, TWO % ("{count: 5, max: 10}", other))
    assert len(loaded(file, TWO % ("{count: 5, max: 6}", "{count: 5, directory: /x}")).resources) == 2


def test_provisioned_resources_of_one_binderfs_need_distinct_prefixes(file: Path) -> None:
    """Each resource finds its devices in the binderfs by their prefix, whatever their numbers are."""
    text = (
        "resources:\n- {resource_name: a.io/x, device_dir: /a, provision: {count: 20, directory: /run//devices/}}\n"
        "- {device_prefix: %s, device_dir: /run, provision: {count: 5, first: 90, directory: //run/./%s}}"
    )
    assert len(loaded(file, text % ("aosp_binder1", "other")).resources) == 2
    assert len(loaded(file, text % ("sidecar_binder", "devices")).resources) == 2
    with pytest.raises(ConfigError) as raised:
        loaded(file, text % ("aosp_binder1", "devices"))
    assert str(raised.value).startswith(
        f"file {file}: resources[0] and resources[1]: aosp_binder1… in /run/devices is taken by both, a.io/x and "
        "aosp.io/binder"
    )


@pytest.mark.parametrize(("one", "other"), [("null", "{count: 5}"), ("{count: 5}", "null"), ("null", "null")])
def test_provision_is_set_per_resource(one: str, other: str, file: Path) -> None:
    assert len(loaded(file, TWO % (one, other)).resources) == 2
