#!/usr/bin/env python3
"""Generate docs/status.schema.json, the JSON schema of /status, from the types of the report: ``make docs``.

The descriptions are the docstrings in ``aosp_plugin.daemon.report``, of the types and of their fields.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from aosp_plugin.daemon import report

if TYPE_CHECKING:
    from collections.abc import Mapping

TARGET = Path(__file__).resolve().parents[1] / "docs" / "status.schema.json"


def schema() -> str:
    """Return the text of the schema file. Fields that a later version adds are allowed."""
    (reference,), components = msgspec.json.schema_components(
        [report.Report], schema_hook=None, ref_template="#/$defs/{name}"
    )
    descriptions = field_descriptions()
    for name, definition in components.items():
        for field, part in definition.get("properties", {}).items():
            if text := descriptions.get(name, {}).get(field):
                part["description"] = text
            part.pop("default", None)  # the plugin always sends every field
        if "properties" in definition:
            definition["required"] = list(definition["properties"])
    document: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Status of aosp-device-plugin on a node",
        **reference,
        "$defs": components,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def field_descriptions() -> Mapping[str, Mapping[str, str]]:
    """Return the docstring of each field by the names of type and field, on one line."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(report)).body:
        if isinstance(node, ast.ClassDef):
            fields = found.setdefault(node.name, {})
            for field, text in zip(node.body, node.body[1:], strict=False):
                match field, text:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(docstring))),
                    ):
                        fields[name] = " ".join(docstring.replace("``", "").split())
    return found


def main() -> None:
    """Write the file."""
    TARGET.write_text(schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
