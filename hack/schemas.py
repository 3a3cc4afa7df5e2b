"""The JSON Schemas of a configuration file, the parameters of claims, and /status.

Those of inputs contain the keys, their types, and the limits of numbers and patterns of texts, but neither
``Limit.check`` nor the rules across keys. Numbers and booleans that are written as text are valid for the plugin only.
That of /status is made of types, with the docstrings of them and of their fields.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from aosp_plugin.backend.parameters import API_VERSION, KIND, PhoneParameters, camel_case
from aosp_plugin.config import convert, keys
from aosp_plugin.config.sources import FILE_VERSION
from aosp_plugin.report import document as report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def configuration() -> dict[str, Any]:
    """Return the schema of a configuration file. It has no ``$ref``, so that it can be embedded in another schema."""
    version = {"const": FILE_VERSION, "description": "Version of the file format."}
    resource, process = _properties(keys.Resource), _properties(keys.Config)
    resources = {"type": "array", "minItems": 1, "items": _mapping(resource, ())} | process.pop("resources")
    top_level = _mapping({"version": version} | resource | process | {"resources": resources}, ["version"])
    return {"$schema": _DRAFT, "title": "aosp-plugin configuration"} | top_level


def parameters() -> dict[str, Any]:
    """Return the schema of the parameters of claims. Which of them a claim may set is not part of it."""
    constants = {"apiVersion": {"const": API_VERSION}, "kind": {"const": KIND}}
    keys = {camel_case(name): part for name, part in _properties(PhoneParameters).items()}
    return {"$schema": _DRAFT, "title": "aosp-plugin claim parameters"} | _mapping(constants | keys, [*constants])


def status() -> dict[str, Any]:
    """Return the schema of /status. Fields that a later version adds are allowed."""
    (reference,), components = msgspec.json.schema_components(
        [report.Report], schema_hook=None, ref_template="#/$defs/{name}"
    )
    for name, definition in components.items():
        if "description" in definition:  # Python 3.13 removes the indentation of docstrings, earlier ones keep it
            definition["description"] = inspect.cleandoc(definition["description"])
        descriptions = convert.descriptions(getattr(report, name)) if "properties" in definition else {}
        for field, part in definition.get("properties", {}).items():
            if text := descriptions.get(field):
                part["description"] = text.replace("``", "")
            part.pop("default", None)  # the plugin always sends every field
        if "properties" in definition:
            definition["required"] = list(definition["properties"])
    return {"$schema": _DRAFT, "title": "Status of aosp-device-plugin on a node", **reference, "$defs": components}


def _mapping(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _properties(struct: type[msgspec.Struct]) -> dict[str, Any]:
    descriptions = convert.descriptions(struct)
    return {
        name: _key_schema(key) | {"description": descriptions[name]} for name, key in convert.keys_of(struct).items()
    }


def _key_schema(key: convert.Key) -> dict[str, Any]:
    if key.structs == (keys.Resource,):
        return {}
    structs = [
        _mapping(_properties(struct), [name for name, part in convert.keys_of(struct).items() if part.required])
        for struct in key.structs
    ]
    if structs and key.is_list:
        item, _ = get_args(get_args(key.hint)[0])
        texts = [] if item in key.structs else [{"type": "string"}]
        return {"type": "array", "items": {"anyOf": [*texts, *structs]}}
    if structs:
        return {"anyOf": [*structs, {"type": "null"}]}
    plain = msgspec.json.schema(key.hint)
    definitions = plain.pop("$defs", {})
    return dict(_inlined(plain, definitions))


def _inlined(part: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a part of a schema with references replaced by their definitions."""
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(definitions[part["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in part.items()}
