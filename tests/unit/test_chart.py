"""Generated files and values schema of the Helm chart. ``make test-deploy`` renders the chart with Helm."""

import json
import re
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
    assert path.read_text(encoding="utf-8") == files()[path], "run `make chart`"


def test_values_yaml_has_every_value_of_the_schema() -> None:
    assert SCHEMA["properties"].keys() - {"global"} == VALUES.keys()


def test_the_chart_says_what_artifact_hub_shows() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    changes = yaml.safe_load(chart["annotations"]["artifacthub.io/changes"])
    assert {change["kind"] for change in changes} <= {"added", "changed", "deprecated", "removed", "fixed", "security"}
    assert all(change["description"] for change in changes)


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


def test_the_schema_accepts_a_surge_without_unavailable_pods() -> None:
    rolling = {"maxSurge": "10%", "maxUnavailable": 0}
    Draft7Validator(SCHEMA).validate(merged(VALUES, {"updateStrategy": {"rollingUpdate": rolling}}))


@pytest.mark.parametrize(
    "overrides",
    [
        {"config": {"device_prefx": "x"}},
        {"config": {"version": "v2"}},
        {"config": {"provision": {"count": 0}}},
        {"image": {"digest": "latest"}},
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}},
        {"networkPolicy": {"from": []}},
        {"networkPolicy": {"from": None}},
        {"networkPolicy": {"apiServer": None}},
        {"networkPolicy": {"apiServer": {"ports": None}}},
        {"networkPolicy": {"apiServer": {"ports": []}}},
        {"config": {"api": "both"}},
        {"dra": {"classes": {"aosp.io/phone": {"parameters": {"allowedDevice": []}}}}},
        {"commonLabels": {"app.kubernetes.io/name": "x"}},
        {"podLabels": {"app.kubernetes.io/instance": "x"}},
        {"provision": {"enabled": "yes"}},
        {"provisions": {}},
    ],
    ids=str,
)
def test_the_schema_rejects_wrong_values(overrides: dict[str, Any]) -> None:
    """Wrong are misspelled keys, other types, and values that the API server refuses, such as two kinds of rollout."""
    assert list(Draft7Validator(SCHEMA).iter_errors(merged(VALUES, overrides)))


def test_the_network_policy_opens_the_container_s_port() -> None:
    templates = CHART / "templates"
    policy, daemon_set = ((templates / name).read_text() for name in ("networkpolicy.yaml", "daemonset.yaml"))
    assert re.findall(r" port: (.*)", policy)[0] == "{{ .Values.port }}"
    assert re.findall(r"containerPort: (.*)", daemon_set) == ["{{ .Values.port }}"]


def test_the_chart_s_container_has_the_arguments_and_variables_of_the_base() -> None:
    """So the same addresses serve metrics and status; ``make test-deploy`` compares everything that Helm renders."""
    base = (DEPLOY / "base/daemonset.yaml").read_text()
    parts = []
    for text in (base, (CHART / "templates/daemonset.yaml").read_text()):
        (part,) = re.findall(r"\n +args:\n( +- serve.*?)\n +ports:\n", text, re.DOTALL)
        part = re.sub(r"\n +{{- (if|with) .*?{{- end }}", "", part, flags=re.DOTALL)
        parts.append(re.sub(r"\n +#.*", "", part.replace("{{ .Values.port }}", f"{VALUES['port']}")))
    assert parts[0] == parts[1]
