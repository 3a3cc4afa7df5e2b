"""The JSON Schema of the configuration file: what is a configuration is valid, and a typing error is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from aosp_plugin import config
from aosp_plugin.config import KEYS, RESOURCE_KEYS, schema
from aosp_plugin.config.keys import keys_of
from tests.unit.config.tables import BAD, GOOD, write

ROOT = Path(__file__).parents[3]
VALIDATOR = jsonschema.Draft202012Validator(schema())

SEVERAL = """
version: v1
log_level: debug
verify: file
sets: {size: 3, stride: 120, first: 1}
resources:
- {resource_name: a.io/x, device_prefix: x, provision: {count: 360, max: 400}, numa: {0-179: 0, "180": 1}}
- {device_prefix: y, sets: {names: [binder, hwbinder], pattern: "{set}-{name}"}, device_list: [cdi-cri]}
- {resource_name: a.io/z, device_prefix: z, sets: null, recreate: on-start}
"""


def valid(document: Any) -> bool:
    """Say whether the schema allows it, as JSON."""
    return bool(VALIDATOR.is_valid(json.loads(json.dumps(document))))


def test_it_is_a_schema() -> None:
    """Of the draft that it names, without a reference: it can stand anywhere in another one."""
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert "$ref" not in json.dumps(schema())
    assert "$defs" not in json.dumps(schema())


def test_it_has_every_key_with_what_people_read_of_it() -> None:
    """At the top level all of them, in an entry those of a resource."""
    top = schema()["properties"]
    assert top.keys() == {"version", "resources", *KEYS}
    entry = top["resources"]["items"]["properties"]
    assert list(entry) == list(RESOURCE_KEYS)
    for name, key in KEYS.items():
        assert top[name]["description"] == key.help
        assert name not in entry or entry[name] == top[name]
        for struct, part in zip(key.structs, top[name].get("anyOf", ()), strict=False):
            shown = {inner: one["description"] for inner, one in part["properties"].items()}
            assert shown == {inner: one.help for inner, one in keys_of(struct).items()}


@pytest.mark.parametrize(
    "text",
    [
        "version: v1",
        SEVERAL,
        (ROOT / "deploy" / "base" / "config.yaml").read_text(encoding="utf-8"),
        *(f"version: v1\n{name}: {text}" for name, (_, text, _) in GOOD.items()),
        *(f"version: v1\nresources: [{{{name}: {GOOD[name][1]}}}]" for name in RESOURCE_KEYS if name != "numa"),
    ],
)
def test_examples_are_valid(text: str, file: Path) -> None:
    """What the plugin takes, and what it prints of that."""
    _, settings = config.load({}, {}, write(file, text))
    VALIDATOR.validate(json.loads(json.dumps(yaml.safe_load(text))))
    VALIDATOR.validate(yaml.safe_load(config.as_yaml(settings)))


@pytest.mark.parametrize(
    "text",
    [
        "verify: file",
        "version: v2",
        "version: v1\nverfy: file",
        "version: v1\nresources: []",
        "version: v1\nresources: [5]",
        "version: v1\nresources: [{verfy: file}]",
        "version: v1\nresources: [{log_level: debug}]",
        "version: v1\nresources: [{resources: [{}]}]",
        "version: v1\nresources: [{version: v1}]",
        "version: v1\nsets: {size: 3, sice: 3}",
        "version: v1\nsets: {size: 3, names: [binder]}",
        "version: v1\nsets: {names: []}",
        "version: v1\nsets: {stride: 3}",
        "version: v1\nsets: {size: 65}",
        "version: v1\nnodes: {max: 3}",
        "version: v1\nprovision: {count: 3, ensure: 3}",
        "version: v1\nprovision: {count: 3, directory: run}",
        "version: v1\nnuma: {a: 0}",
        "version: v1\nnuma: {'1': 1024}",
        "version: v1\nreplicas: 0",
        "version: v1\nreplicas: 1001",
        "[]",
    ],
)
def test_what_is_no_configuration_is_not_valid(text: str) -> None:
    """Unknown keys at every level, keys in the wrong place, and values out of their range."""
    assert not valid(yaml.safe_load(text))


def test_values_of_the_wrong_type_are_not_valid() -> None:
    """Of every key: for each there is a bad value that the schema knows as well."""
    caught = {name for name, value in BAD if _is_json(value) and not valid({"version": "v1", name: value})}
    assert caught == set(KEYS)


def _is_json(value: Any) -> bool:
    return re.search("Infinity|NaN", json.dumps(value)) is None
