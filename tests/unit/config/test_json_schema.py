"""The JSON Schema of the configuration file: it accepts configurations, and rejects misspelled keys and wrong types."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from aosp_plugin.config import keys, sources
from aosp_plugin.config.convert import descriptions
from aosp_plugin.config.keys import KEYS, RESOURCE_KEYS
from hack.schemas import configuration as schema
from tests.unit.config.tables import INVALID_PAIRS, REQUIRED, write

ROOT = Path(__file__).parents[3]
VALIDATOR = jsonschema.Draft202012Validator(schema())

SEVERAL = """
version: v1
log_level: debug
verify: file
sets: {size: 3, stride: 120, first: 1}
resources:
- {resource_name: a.io/x, sets: null, phones: {count: 360, directory: /srv/p}, numa: {0-179: 0, "180": 1}}
- {device_prefix: y, sets: {names: [binder, hwbinder], pattern: "{set}-{name}"}, device_list: [cdi-cri]}
- {resource_name: a.io/z, device_prefix: z, sets: null, recreate: on-start}
"""

REJECTED = [
    *("[]", "verify: file", "version: v2", "version: v1\nverfy: file"),
    *(f"version: v1\nresources: {text}" for text in ("[]", "[5]", "[{verfy: file}]", "[{log_level: debug}]")),
    *(f"version: v1\nsets: {text}" for text in ("{size: 3, sice: 3}", "{size: 3, names: [binder]}", "{stride: 3}")),
    "version: v1\nshared_devices: [{path: /dev/fuse, requird: true}]",
    "version: v1\nshared_devices: [{required: true}]",
    "version: v1\nslice_devices: [/dev/loop*]",
]


def valid(document: Any) -> bool:
    """Return whether the schema accepts the document."""
    return bool(VALIDATOR.is_valid(json.loads(json.dumps(document))))


def test_schema_is_valid_and_has_no_references() -> None:
    """It can be embedded in another schema."""
    jsonschema.Draft202012Validator.check_schema(schema())
    assert "$ref" not in json.dumps(schema())


def test_schema_has_every_key_with_its_description() -> None:
    """An entry of resources has the keys of a resource only."""
    top_level = schema()["properties"]
    assert top_level.keys() == {"version", "resources", *KEYS}
    entry = top_level["resources"]["items"]["properties"]
    assert list(entry) == list(RESOURCE_KEYS)
    texts = descriptions(keys.Resource) | descriptions(keys.Config)
    for name in KEYS:
        assert top_level[name]["description"] == texts[name]
        assert name not in entry or entry[name] == top_level[name]


def test_configuration_is_valid(file: Path) -> None:
    """The printed configuration is valid, too."""
    base = (ROOT / "deploy" / "base" / "config.yaml").read_text(encoding="utf-8")
    examples = [f"version: v1\n{REQUIRED.get(name, '')}{name}: {key.example}" for name, key in KEYS.items()]
    for text in ("version: v1", SEVERAL, base, *examples):
        _, settings = sources.load({}, {}, write(file, text))
        VALIDATOR.validate(json.loads(json.dumps(yaml.safe_load(text))))
        VALIDATOR.validate(yaml.safe_load(sources.as_yaml(settings)))


def test_invalid_document_is_rejected() -> None:
    assert [text for text in REJECTED if valid(yaml.safe_load(text))] == []


def test_schema_rejects_an_invalid_value_of_every_key() -> None:
    rejected = {name for name, value in INVALID_PAIRS if _is_json(value) and not valid({"version": "v1", name: value})}
    assert rejected == set(KEYS)


def _is_json(value: Any) -> bool:
    return re.search("Infinity|NaN", json.dumps(value)) is None
