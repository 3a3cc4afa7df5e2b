"""Generated files and values schema of the Helm chart. ``make test-deploy`` renders the chart with Helm."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from aosp_plugin.config import keys
from hack.chart import CHART, DEPLOY, files

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def merged(values: Any, overrides: Any) -> Any:
    """Return values with overrides, as Helm merges them: mappings key by key, and null removes a key."""
    if not isinstance(values, dict) or not isinstance(overrides, dict):
        return overrides
    result = values | {name: merged(values.get(name), part) for name, part in overrides.items()}
    return {name: part for name, part in result.items() if part is not None}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_a_generated_file_is_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == files()[path], "run `make generate`"


def test_the_schema_is_draft_7_which_every_helm_supports() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert "draft-07" in SCHEMA["$schema"]
    assert json.dumps(SCHEMA).count("$schema") == 1


def test_the_schema_accepts_every_key_of_the_configuration() -> None:
    part = SCHEMA["properties"]["config"]
    assert part["properties"].keys() == {"version"} | keys.KEYS.keys() | {"resources"}
    assert part["additionalProperties"] is False


@pytest.mark.parametrize("name", [None, *sorted(path.name for path in (CHART / "ci").iterdir())])
def test_the_schema_accepts_default_and_test_values(name: str | None) -> None:
    overrides = yaml.safe_load((CHART / "ci" / name).read_text(encoding="utf-8")) if name else {}
    Draft7Validator(SCHEMA).validate(merged(VALUES, overrides))


def test_the_schema_rejects_wrong_values() -> None:
    """Wrong are misspelled keys, other types, and values that the API server refuses, such as two kinds of rollout."""
    wrong: list[dict[str, Any]] = [
        {"config": {"device_prefx": "x"}},
        {"config": {"phones": {"count": 0}}},
        {"image": {"digest": "latest"}},
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}},
        {"updateStrategy": None},
        {"provision": {"enabled": True}},
        {"networkPolicy": {"apiServer": {"ports": []}}},
        {"config": {"api": "both"}},
        {"dra": {"classes": {"aosp.io/phone": {"parameters": {"allowedDevice": []}}}}},
        {"commonLabels": {"app.kubernetes.io/name": "x"}},
        {"provisions": {}},
    ]
    for overrides in wrong:
        assert list(Draft7Validator(SCHEMA).iter_errors(merged(VALUES, overrides))), overrides
