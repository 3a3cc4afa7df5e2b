"""The JSON Schema of a configuration file, for editors and for the values of a Helm chart.

It knows the keys, their types and what they say of numbers and texts. What a function checks, and what holds between
keys, is left to the plugin; so is a number or truth value that is written as text, which the plugin takes.
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
    """Return the schema (draft 2020-12). It has no ``$ref``, so that it can stand anywhere in another one."""
    version = {"const": FILE_VERSION, "description": "Which form of a configuration file this is."}
    entries = {"type": "array", "minItems": 1, "items": _mapping(_of_keys(RESOURCE_KEYS), ())}
    resources = entries | {"description": PROCESS_KEYS["resources"].help}
    top = _mapping({"version": version} | _of_keys(KEYS) | {"resources": resources}, ["version"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "aosp-plugin configuration"} | top


def _mapping(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _of_keys(keys: Mapping[str, Key]) -> dict[str, Any]:
    return {name: _of_key(key) | {"description": key.help} for name, key in keys.items()}


def _of_key(key: Key) -> dict[str, Any]:
    if key.structs:
        return {"anyOf": [*(_of_struct(struct) for struct in key.structs), {"type": "null"}]}
    plain = msgspec.json.schema(key.hint)
    definitions = plain.pop("$defs", {})
    return dict(_inlined(plain, definitions))


def _of_struct(struct: type[msgspec.Struct]) -> dict[str, Any]:
    required = [field.name for field in msgspec.structs.fields(struct) if field.required]
    return _mapping(_of_keys(keys_of(struct)), required)


def _inlined(part: Any, definitions: Mapping[str, Any]) -> Any:
    """Put the definitions in the places of the references to them."""
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(definitions[part["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(one, definitions) for name, one in part.items()}
