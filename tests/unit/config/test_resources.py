"""The list of resources in a file, and keys whose value is a mapping."""

import re
from pathlib import Path

from aosp_plugin.binder.devices.health import Verify
from aosp_plugin.config.keys import PROCESS_KEYS, NamedSets, NumberedSets, Resource
from aosp_plugin.config.sources import load
from aosp_plugin.config.values import is_set_pattern
from tests.unit.config.tables import error_of, loaded, write

ERRORS = [
    *((f"resources: {text}", "resources: … is not allowed; allowed: a list of one") for text in ("[]", "", "x")),
    ("resources: [{}, null]", "resources[1]: null is not allowed; allowed: a mapping of resource keys"),
    ("resources: [{set: 3}]", "resources[0].set: unknown key; did you mean sets?"),
    ("resources: [{1: 3}]", "resources[0].1: unknown key; the keys are api, "),
    ("resources: [{}, {verify: deep}]", "resources[1].verify: 'deep' is not allowed; allowed: file, char, "),
    ("resources: [{sets: {size: 65}}]", "resources[0].sets.size: 65 is not allowed; allowed: a number from 1 "),
    ("sets: {size: true}", "sets.size: true is not allowed; allowed: a number from 1 to 64"),
    ("sets: {size: 3, stride: 0}", "sets.stride: 0 is not allowed; allowed: a number from 1 to 999999999, or null"),
    ("sets: {size: 3, first: 1000000000}", "sets.first: 1000000000 is not allowed; allowed: a number from 0 to 9999"),
    ("sets: {stride: 3}", "sets.size: required key is missing; allowed: a number from 1 to 64"),
    ("sets: {names: [a], size: 3}", "sets: {'names': ['a'], 'size': 3} is not allowed; allowed: a mapping with"),
    ("sets: {names: []}", "sets.names: [] is not allowed; allowed: a list of device names, each once"),
    ("sets: {names: [a, binder-control]}", "sets.names: ['a', 'binder-control'] is not allowed"),
    ("sets: {names: [a], pattern: x}", "sets.pattern: 'x' is not allowed; allowed: a file name with {set} and"),
    ('phones: {count: 1, directory: "/\\n"}', "phones.directory: '/\\n' is not allowed"),
    ("phones: {count: 262145}", "phones.count: 262145 is not allowed; allowed: a number from 1 to 262144"),
]


def test_entry_inherits_keys_of_the_top_level(file: Path) -> None:
    """A mapping in an entry replaces the one of the top level as a whole."""
    current = loaded(
        file,
        "verify: file\nlog_level: debug\nsets: {size: 3, stride: 120}\nresources:\n"
        "- {resource_name: a.io/x, device_prefix: x}\n"
        "- {resource_name: a.io/y, device_prefix: y, verify: probe, sets: {size: 2}}\n"
        "- {device_prefix: z, sets: null}",
    )
    assert current.resources == (
        Resource(resource_name="a.io/x", device_prefix="x", verify=Verify.FILE, sets=NumberedSets(size=3, stride=120)),
        Resource(resource_name="a.io/y", device_prefix="y", verify=Verify.PROBE, sets=NumberedSets(size=2)),
        Resource(device_prefix="z", verify=Verify.FILE),
    )
    assert (current.log_level, current.listen) == ("debug", "127.0.0.1:9478")


def test_flags_and_variables_override_every_entry(file: Path) -> None:
    path = write(
        file,
        "version: v1\nisolation: shared\nresources:\n"
        "- {resource_name: a.io/x, device_prefix: x, isolation: shared, verify: file}\n"
        "- {device_prefix: y}\n",
    )
    _, settings = load({"isolation": "strict"}, {"AOSP_PLUGIN_VERIFY": "probe"}, path)
    for entry in ("resources[0]", "resources[1]"):
        assert settings[f"{entry}.isolation"] == ("strict", "flag --isolation")
        assert settings[f"{entry}.verify"] == ("probe", "variable AOSP_PLUGIN_VERIFY")


def test_key_of_the_process_is_an_error_in_an_entry(file: Path) -> None:
    for name in PROCESS_KEYS:
        assert error_of(file, f"version: v1\nresources:\n- verify: file\n- {name}: x") == (
            f"resources[1].{name}: not a key of a resource; move it to the top level of the file"
        )


def test_sets_have_numbers_or_names(file: Path) -> None:
    cases: list[tuple[str, NumberedSets | NamedSets | None]] = [
        ("{first: 999999999, stride: 999999999, size: 3}", NumberedSets(size=3, stride=999999999, first=999999999)),
        ("{size: 3, stride: null}", NumberedSets(size=3, stride=None)),
        ("{names: [a, b]}", NamedSets(names=("a", "b"), pattern="{set}/{name}")),
        ("null", None),
    ]
    for text, sets in cases:
        assert loaded(file, f"sets: {text}").resources[0].sets == sets


def test_error_names_the_place_in_the_file(file: Path) -> None:
    for text, error in ERRORS:
        message = error_of(file, f"version: v1\n{text}\n")
        assert re.match(".*".join(map(re.escape, error.split("…"))), message), (text, message)


def test_set_pattern_has_set_and_name_once() -> None:
    """With at most one slash, and the path does not leave the device directory."""
    for pattern in ("{set}/{name}", "{set}{name}", "aosp_{set}_{name}", "a{set}/b{name}c"):
        assert is_set_pattern(pattern)
    for pattern in (
        *("", "{set}", "{name}", "{set}{set}{name}", "{name}/{set}", "{set}{name}/x", "x/{set}{name}"),
        *("{set}/{name}/{name}", "{set}/x/{name}", "/{set}{name}", "{set}{name}/", "{set}//{name}", "../{set}{name}"),
        *("{set}{name}/..", "{set} {name}", "{set}\n{name}", "{set}{name}{number}", "{{set}}{name}", "{set}{name}{"),
        "{set}{name}" + "x" * 63,
    ):
        assert not is_set_pattern(pattern), pattern
