"""``make generate``: write the generated parts of pages in docs, and the JSON Schemas."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from aosp_plugin.backend.parameters import PhoneParameters, camel_case
from aosp_plugin.binder.devices.health import REASONS
from aosp_plugin.config import convert, keys
from hack import schemas
from tests.reports import complete_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = ROOT / "docs" / "configuration.md"
MONITORING = ROOT / "docs" / "monitoring.md"
RUNBOOK = ROOT / "docs" / "runbook.md"
PARAMETERS = ROOT / "docs" / "phone-parameters.schema.json"
RULES = ROOT / "deploy" / "chart" / "files" / "rules.yaml"
STATUS = ROOT / "docs" / "status.schema.json"
TEXT = "<!-- make generate: text -->"
"""Marks the end of a generated text below a heading."""


def files() -> dict[Path, str]:
    """Return the content of each generated file by its path."""
    documents = {PARAMETERS: schemas.parameters(), STATUS: schemas.status()}
    texts = {path: msgspec.json.format(msgspec.json.encode(it), indent=2) for path, it in documents.items()}
    return {
        CONFIGURATION: with_tables(CONFIGURATION.read_text(encoding="utf-8"), keys_by_title()),
        MONITORING: with_tables(MONITORING.read_text(encoding="utf-8"), {"metrics": _metrics()}),
        RUNBOOK: with_tables(
            with_texts(RUNBOOK.read_text(encoding="utf-8"), dict(_reasons())), {"alerts": _alert_table()}
        ),
        **{path: f"{text.decode()}\n" for path, text in texts.items()},
    }


def with_texts(page: str, texts: Mapping[str, str]) -> str:
    """Return the text of a page with what is between each heading and the comment after it as it has to be."""
    for title, text in texts.items():
        before, heading, section = page.partition(f"### {title}\n\n")
        old, comment, after = section.partition(TEXT)
        if not comment or "\n#" in old:
            raise SystemExit(f"the page has no heading '### {title}', or not '{TEXT}' below it: add them first")
        page = "".join([before, heading, textwrap.fill(text, 139 - len(TEXT)), " ", comment, after])
    return page


def _reasons() -> Iterator[tuple[str, str]]:
    """Yield each reason for Unhealthy with what it is called and what to do first."""
    for reason, info in REASONS.items():
        yield reason, f"{info.title[0].upper()}{info.title[1:]}. {info.action}"


def _alert_table() -> str:
    """Return the table of the alerts, the critical ones first."""
    rows = [("alert", "severity", "after", "meaning"), ("---",) * 4]
    for rule in sorted(_rules(), key=lambda rule: rule["labels"]["severity"] != "critical"):
        link = f"[{rule['alert']}](#{rule['alert'].lower()})"
        rows.append((link, rule["labels"]["severity"], rule.get("for", "at once"), _summary(rule)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def _summary(rule: Mapping[str, Any]) -> str:
    """Return the text of an alert with capitals in place of values."""
    summary = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: label[1].upper(), rule["annotations"]["summary"])
    return re.sub(r"\{\{ \$value[^}]*\}\}B?", "N", summary)


def keys_by_title() -> dict[str, str]:
    """Return the tables of the page of the configuration."""
    return {
        "keys of a resource": _section(keys.Resource),
        "keys of the process": _section(keys.Config),
        "parameters of claims": _table(PhoneParameters, lambda name, _: f"`{camel_case(name)}`"),
    }


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """Return the text of a page with what follows each comment, up to the next heading, as it has to be."""
    for title, table in tables.items():
        before, comment, rest = page.partition(f"<!-- make generate: {title} -->\n\n")
        _, heading, after = rest.partition("\n## ")
        page = f"{before}{comment}{table}{heading}{after}"
    return page


def _metrics() -> str:
    """Return the table of the plugin's metrics."""
    rows = [("name", "type", "labels", "meaning"), ("---",) * 4]
    for metric in complete_metrics().registry.collect():
        if metric.name.startswith("aosp_plugin_"):
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            labels = [f"`{label}`" for label in metric.samples[0].labels if label != "le"]
            rows.append((f"`{name}`", metric.type, ", ".join(labels), metric.documentation))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _section(struct: type[msgspec.Struct]) -> str:
    """Return the table of a section's keys, and a table for each of their mappings."""
    mappings = [
        f"\n### The mapping `{name}`\n\n" + "\nor\n\n".join(map(_mapping, key.structs))
        for name, key in convert.keys_of(struct).items()
        if key.structs and name != "resources"
    ]
    return _table(struct, lambda name, key: f"`{name}`{_sources(key)}", _default) + "".join(mappings)


def _mapping(struct: type[msgspec.Struct]) -> str:
    return _table(struct, default=lambda field, key: "required" if key.required else _code(field.default))


def _table(
    struct: type[msgspec.Struct],
    title: Callable[[str, convert.Key], str] = lambda name, _: f"`{name}`",
    default: Callable[[msgspec.structs.FieldInfo, convert.Key], str] | None = None,
) -> str:
    """Return a table of a struct's keys."""
    descriptions = convert.descriptions(struct)
    rows = [["key", "meaning", *(["default"] if default else []), "example"]]
    rows.append(["---"] * len(rows[0]))
    for field, key in zip(msgspec.structs.fields(struct), convert.keys_of(struct).values(), strict=True):
        meaning = f"{descriptions[field.name]} Allowed: {key.allowed}."
        defaults = [default(field, key)] if default else []
        rows.append([title(field.name, key), meaning, *defaults, f"`{key.example}`"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _sources(key: convert.Key) -> str:
    if not key.variable:
        return " (file only)"
    return " (flag)" if key.flag else ""


def _default(field: msgspec.structs.FieldInfo, _: convert.Key) -> str:
    if field.name not in keys.KEYS:
        return "one resource with the keys of the top level"
    special = f"; with `phones` {_code(keys.PHONE_DEFAULTS[field.name])}" if field.name in keys.PHONE_DEFAULTS else ""
    return _code(keys.DEFAULTS[field.name]) + special


def _code(value: Any) -> str:
    """Return a value as YAML in a code span."""
    if value == "":
        return "empty"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"`{text}`"


def main() -> None:
    """Write the generated files."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
