"""The JSON Schema of a configuration file, for editors and for the values of the Helm chart.

It contains the keys, their types, and the limits of numbers and patterns of texts. ``Key.check`` and the cross-field
validation are not part of it. Numbers and booleans that are written as text are valid for the plugin only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from aosp_plugin.config.keys import keys_of
from aosp_plugin.config.process import FILE_VERSION, KEYS, PROCESS_KEYS
from aosp_plugin.config.resource import RESOURCE_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aosp_plugin.config.keys import Key


def schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12). It has no ``$ref``, so that it can be embedded in another schema."""
    version = {"const": FILE_VERSION, "description": "Version of the file format."}
    entries = {"type": "array", "minItems": 1, "items": _mapping(_properties(RESOURCE_KEYS), ())}
    resources = entries | {"description": PROCESS_KEYS["resources"].help}
    top_level = _mapping({"version": version} | _properties(KEYS) | {"resources": resources}, ["version"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "aosp-plugin configuration"} | top_level


def schema_of(keys: Mapping[str, Key], constants: Mapping[str, str], title: str) -> dict[str, Any]:
    """Return the schema of a mapping with these keys, none of which is required, and with required ``constants``."""
    required = {name: {"const": value} for name, value in constants.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **_mapping(required | _properties(keys), list(required)),
    }


def _mapping(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _properties(keys: Mapping[str, Key]) -> dict[str, Any]:
    return {name: _key_schema(key) | {"description": key.help} for name, key in keys.items()}


def _key_schema(key: Key) -> dict[str, Any]:
    if key.structs and key.is_list:
        items = [{"type": "string"}, *(_struct_schema(struct) for struct in key.structs)]
        return {"type": "array", "items": {"anyOf": items}}
    if key.structs:
        return {"anyOf": [*(_struct_schema(struct) for struct in key.structs), {"type": "null"}]}
    plain = msgspec.json.schema(key.hint)
    definitions = plain.pop("$defs", {})
    return dict(_inlined(plain, definitions))


def _struct_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    required = [field.name for field in msgspec.structs.fields(struct) if field.required]
    return _mapping(_properties(keys_of(struct)), required)


def _inlined(part: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a part of a schema with references replaced by their definitions."""
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(definitions[part["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in part.items()}
