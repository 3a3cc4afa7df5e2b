#!/usr/bin/env python3
"""Generate the JSON schemas of /status and of ``kubectl phones -o json`` from their types: ``make docs``.

The descriptions are the docstrings in ``aosp_plugin.report.document`` and ``kubectl_phones.report``, of the types
and of their fields.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from aosp_plugin.config import convert
from aosp_plugin.report import document as report
from kubectl_phones import report as fleet

if TYPE_CHECKING:
    from types import ModuleType

_ROOT = Path(__file__).resolve().parents[1]
TARGET = _ROOT / "docs/status.schema.json"
FLEET_TARGET = _ROOT / "kubectl_phones/schema.json"


def schema() -> str:
    """Return the text of the schema of /status. Fields that a later version adds are allowed."""
    return _schema(report, report.Report, "Status of aosp-device-plugin on a node")


def fleet_schema() -> str:
    """Return the text of the schema of ``kubectl phones -o json``, likewise."""
    return _schema(fleet, fleet.Fleet, "Phones of a cluster")


def _schema(module: ModuleType, root: type[Any], title: str) -> str:
    (reference,), components = msgspec.json.schema_components([root], schema_hook=None, ref_template="#/$defs/{name}")
    for name, definition in components.items():
        if "description" in definition:  # Python 3.13 removes the indentation of docstrings, earlier ones keep it
            definition["description"] = inspect.cleandoc(definition["description"])
        descriptions = convert.descriptions(getattr(module, name)) if "properties" in definition else {}
        for field, part in definition.get("properties", {}).items():
            if text := descriptions.get(field):
                part["description"] = text.replace("``", "")
            part.pop("default", None)  # the plugin always sends every field
        if "properties" in definition:
            definition["required"] = list(definition["properties"])
    document: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **reference,
        "$defs": components,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def main() -> None:
    """Write the files."""
    TARGET.write_text(schema(), encoding="utf-8")
    FLEET_TARGET.write_text(fleet_schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
