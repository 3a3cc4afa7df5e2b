"""Several resources in one file: what each has of its own, what from the top level, and what they may not share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.binder.devices.edits import Isolation
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.config import PROCESS_KEYS, RESOURCE_KEYS, NumberedSets, Resource, load
from aosp_plugin.errors import ConfigError
from tests.unit.config.tables import GOOD, loaded, write

if TYPE_CHECKING:
    from pathlib import Path


def test_without_a_list_there_is_one_resource(file: Path) -> None:
    """The keys at the top level are its own."""
    assert loaded(file, "resource_name: a.io/x").resources == (Resource(resource_name="a.io/x"),)


def test_an_entry_has_from_the_top_level_what_it_leaves_out(file: Path) -> None:
    """Key by key: a mapping of its own replaces the common one as a whole."""
    made = loaded(
        file,
        "verify: file\nsets: {size: 3, stride: 120}\nresources:\n"
        "- {resource_name: a.io/x, device_prefix: x}\n"
        "- {resource_name: a.io/y, device_prefix: y, verify: probe, sets: {size: 2}}\n"
        "- {device_prefix: z, sets: null}",
    )
    assert made.resources == (
        Resource(resource_name="a.io/x", device_prefix="x", verify=Verify.FILE, sets=NumberedSets(size=3, stride=120)),
        Resource(resource_name="a.io/y", device_prefix="y", verify=Verify.PROBE, sets=NumberedSets(size=2)),
        Resource(device_prefix="z", verify=Verify.FILE),
    )


@pytest.mark.parametrize("name", RESOURCE_KEYS)
def test_an_entry_may_have_each_key_of_a_resource(name: str, file: Path) -> None:
    """Read as at the top level, over which it wins."""
    path = write(file, f"version: v1\nresources:\n- {name}: {GOOD[name][1]}\n")
    made, settings = load({}, {}, path)
    assert getattr(made.resources[0], name) == GOOD[name][2]
    assert settings[f"resources[0].{name}"] == (GOOD[name][2], f"file {path}: resources[0].{name}")
    assert list(settings) == [
        *(key for key in PROCESS_KEYS if key != "resources"),
        *(f"resources[0].{key}" for key in RESOURCE_KEYS),
    ]


def test_a_flag_and_a_variable_win_over_every_entry(file: Path) -> None:
    """They are for all resources."""
    path = write(
        file,
        "version: v1\nisolation: shared\nverify: file\nresources:\n"
        "- {resource_name: a.io/x, device_prefix: x, isolation: shared, verify: file}\n"
        "- {device_prefix: y}\n",
    )
    made, settings = load({"isolation": "strict"}, {"AOSP_PLUGIN_VERIFY": "probe"}, path)
    assert {resource.isolation for resource in made.resources} == {Isolation.STRICT}
    assert {resource.verify for resource in made.resources} == {Verify.PROBE}
    for place in ("resources[0]", "resources[1]"):
        assert settings[f"{place}.isolation"].source == "flag --isolation"
        assert settings[f"{place}.verify"].source == "variable AOSP_PLUGIN_VERIFY"


def test_keys_of_the_process_stay_where_they_are(file: Path) -> None:
    """Beside a list of resources the top level has them as without it."""
    made = loaded(file, "log_level: debug\nresources: [{verify: file}]")
    assert (made.log_level, made.listen) == ("debug", "127.0.0.1:9478")


@pytest.mark.parametrize("name", PROCESS_KEYS)
def test_a_key_of_the_process_is_none_of_an_entry(name: str, file: Path) -> None:
    """It is told that it belongs to the top level."""
    with pytest.raises(ConfigError) as raised:
        loaded(file, f"resources:\n- verify: file\n- {name}: x")
    assert str(raised.value) == (
        f"file {file}: resources[1].{name}: it is the whole process's, not one resource's; it belongs to the file's "
        "top level"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("resources: []", "resources: [] is not allowed; allowed: a list of one mapping or more"),
        ("resources:", "resources: None is not allowed; allowed: a list of one mapping or more"),
        ("resources: {}", "resources: {} is not allowed; allowed: a list of one mapping or more"),
        ("resources: {verify: file}", "resources: {'verify': 'file'} is not allowed; allowed: a list of one"),
        ("resources: x", "resources: 'x' is not allowed; allowed: a list of one mapping or more"),
        ("resources: [5]", "resources[0]: 5 is not allowed; allowed: a mapping with keys of a resource"),
        ("resources: [{}, null]", "resources[1]: None is not allowed; allowed: a mapping with keys of a resource"),
        ("resources: [{set: 3}]", "resources[0].set: there is no such key; the keys are container_paths, "),
        ("resources: [{1: 3}]", "resources[0].1: there is no such key; the keys are "),
        ("resources: [{}, {verify: deep}]", "resources[1].verify: 'deep' is not allowed; allowed: file, char, "),
        ("resources: [{sets: {size: 65}}]", "resources[0].sets.size: 65 is not allowed; allowed: a number from 1 "),
        ("resources: [{verify: file}]\nverify: deep", "verify: 'deep' is not allowed; allowed: file, char"),
    ],
)
def test_a_list_of_another_form_is_told_with_the_place(text: str, why: str, file: Path) -> None:
    """Which entry, counted from 0, and which of its keys; the top level too, where every entry has its own."""
    with pytest.raises(ConfigError, match=f"^{re.escape(f'file {file}: {why}')}"):
        loaded(file, text)


def test_the_unknown_keys_of_an_entry_are_told_with_those_of_a_resource(file: Path) -> None:
    """And not with those that it can't have."""
    with pytest.raises(ConfigError) as raised:
        loaded(file, "resources: [{prefix: x}]")
    assert str(raised.value).endswith(f"; the keys are {', '.join(sorted(RESOURCE_KEYS))}")


def test_two_resources_have_two_names(file: Path) -> None:
    """The name and where both got it are told."""
    text = "resources:\n- {resource_name: a.io/x, device_prefix: x}\n- {device_prefix: y%s}\n"
    assert len(loaded(file, text % "").resources) == 2
    with pytest.raises(ConfigError) as raised:
        loaded(file, text % ", resource_name: a.io/x")
    assert str(raised.value) == (
        f"file {file}: resources[0] and resources[1]: both have the resource_name 'a.io/x' (file {file}: "
        f"resources[0].resource_name; file {file}: resources[1].resource_name); each needs its own"
    )


def test_a_flag_that_makes_two_names_one_is_told(file: Path) -> None:
    """It is for all resources, and a name is for one."""
    path = write(file, "version: v1\nresources: [{resource_name: a.io/x, device_prefix: x}, {device_prefix: y}]\n")
    with pytest.raises(ConfigError, match=r"both have the resource_name 'b.io/z' \(flag --resource-name\); each"):
        load({"resource_name": "b.io/z"}, {}, path)


@pytest.mark.parametrize(
    ("one", "other", "taken"),
    [
        ("{}", "{}", "aosp_binder… in /dev"),
        ("{device_prefix: aosp}", "{}", "aosp_binder… in /dev"),
        ("{device_prefix: x}", "{device_prefix: x_}", "x_… in /dev"),
        ("{device_dir: /a/b}", "{device_dir: //a/./c/../b/}", "aosp_binder… in /a/b"),
    ],
)
def test_no_node_is_of_two_resources(one: str, other: str, taken: str, file: Path) -> None:
    """One prefix that begins with the other, in the same directory however it is spelled, takes the other's nodes."""
    named = "resources:\n- {resource_name: a.io/x, %s\n- {resource_name: a.io/y, %s"
    with pytest.raises(ConfigError) as raised:
        loaded(file, named % (one[1:], other[1:]))
    assert str(raised.value).startswith(
        f"file {file}: resources[0] and resources[1]: {taken} is taken by both, a.io/x and a.io/y ("
    )
    with pytest.raises(ConfigError, match=re.escape(f"{taken} is taken by both, a.io/x and a.io/y (")):
        loaded(file, named % (other[1:], one[1:]))


def test_every_two_of_the_resources_are_compared(file: Path) -> None:
    """The first and the last as well."""
    text = "resources:\n- {device_prefix: x}\n- {resource_name: a.io/y, device_prefix: y}\n- {resource_name: a.io/z%s}"
    assert len(loaded(file, text % "").resources) == 3
    with pytest.raises(ConfigError, match=r"resources\[0\] and resources\[2\]: x1… in /dev is taken by both"):
        loaded(file, text % ", device_prefix: x1")


def test_resources_may_have_different_prefixes_or_directories(file: Path) -> None:
    """One of them is enough; names that begin with the same letters are still different."""
    for other in ("device_prefix: aosp_bindex", "device_dir: /dev/binderfs", "device_prefix: hwaosp_binder"):
        made = loaded(file, f"resources: [{{resource_name: a.io/x}}, {{resource_name: a.io/y, {other}}}]")
        assert len(made.resources) == 2
