"""The Helm chart, as far as can be told without Helm; `make test-deploy` renders it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from aosp_plugin import config
from hack.chart import CHART, DEPLOY, files, values_schema

ROOT = Path(__file__).parents[2]
TEMPLATES = {path.name: path.read_text(encoding="utf-8") for path in sorted((CHART / "templates").iterdir())}
CI = sorted((CHART / "ci").glob("*-values.yaml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


VALUES = load(CHART / "values.yaml")
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


def merged(values: Any, more: Any) -> Any:
    """Return values with others on top, as Helm does: mappings are merged, and null removes."""
    if not isinstance(values, dict) or not isinstance(more, dict):
        return more
    both = values | {name: merged(values.get(name), part) for name, part in more.items()}
    return {name: part for name, part in both.items() if part is not None}


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(DEPLOY))) for path in files()])
def test_what_is_made_is_current(path: Path) -> None:
    """`make chart` would change nothing."""
    assert path.read_text(encoding="utf-8") == files()[path], "run `make chart`"


def test_schema_is_one_that_every_helm_reads() -> None:
    """The schema of the values is a valid one of draft 07, and says no other draft anywhere."""
    Draft7Validator.check_schema(SCHEMA)
    assert json.dumps(SCHEMA).count("$schema") == 1
    assert "draft-07" in SCHEMA["$schema"]


def test_schema_has_the_plugins_own_keys() -> None:
    """`config` takes each key of the configuration file, and no other."""
    part = values_schema()["properties"]["config"]
    assert part["properties"].keys() == {"version"} | config.KEYS.keys() | {"resources"}
    assert part["additionalProperties"] is False


@pytest.mark.parametrize("path", [None, *CI], ids=lambda path: path.name if path else "values.yaml")
def test_values_are_valid(path: Path | None) -> None:
    """The schema accepts the chart's own values, and those that it is tried with."""
    values = merged(VALUES, load(path)) if path else VALUES
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(values)] == []


@pytest.mark.parametrize(
    "more",
    [
        {"config": {"device_prefx": "x"}},
        {"config": {"version": "v2"}},
        {"config": {"provision": {"count": 0}}},
        {"image": {"digest": "latest"}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}},
        {"networkPolicy": {"from": []}},
        {"provision": {"enabled": "yes"}},
        {"provisions": {}},
    ],
    ids=str,
)
def test_wrong_values_are_refused(more: dict[str, Any]) -> None:
    """The schema refuses what is misspelled, of another type, or known to break a node."""
    assert list(Draft7Validator(SCHEMA).iter_errors(merged(VALUES, more)))


def test_schema_knows_every_value() -> None:
    """Each value of values.yaml is in the schema, and the schema has no other but Helm's own."""

    def names(part: Any) -> set[str]:
        return set(part.get("properties", {}))

    assert names(SCHEMA) == VALUES.keys() | {"global"}
    for name in ("image", "networkPolicy", "podMonitor", "prometheusRule", "dashboard", "nodeFeatureRule", "provision"):
        assert names(SCHEMA["properties"][name]) == VALUES[name].keys()


def test_templates_use_values_that_there_are() -> None:
    """Each .Values.x.y of a template is in values.yaml, but for keys of the configuration; and each value is used."""
    used = {tuple(path.split(".")) for text in TEMPLATES.values() for path in re.findall(r"\.Values\.([\w.]+)", text)}
    for path in used:
        part: Any = VALUES
        for name in path if path[0] != "config" else path[:1]:
            assert name in part, f".Values.{'.'.join(path)}"
            part = part[name]
    assert {path[0] for path in used} == VALUES.keys()


def test_configuration_is_that_of_the_base() -> None:
    """As it is, the chart's configuration is deploy/base's; the provision values make it deploy/provision's."""
    assert VALUES["config"] == load(DEPLOY / "base" / "config.yaml")
    provision = merged(VALUES, load(CHART / "ci" / "provision-values.yaml"))
    assert provision["config"] == load(DEPLOY / "provision" / "config.yaml")
    assert provision["provision"] == {"enabled": True}


def test_defaults_are_those_of_the_base() -> None:
    """What can be changed by values is, as it is, what deploy/base has."""
    daemon_set = load(DEPLOY / "base" / "daemonset.yaml")
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for name in ("nodeSelector", "tolerations", "priorityClassName"):
        assert VALUES[name] == pod[name], name
    assert VALUES["resources"] == container["resources"]
    assert VALUES["updateStrategy"] == daemon_set["spec"]["updateStrategy"]
    assert VALUES["image"]["pullPolicy"] == container["imagePullPolicy"]
    assert container["image"] == f"{VALUES['image']['repository']}:{load(CHART / 'Chart.yaml')['appVersion']}"


def test_versions_agree() -> None:
    """Chart and application have the project's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = load(CHART / "Chart.yaml")
    assert (chart["name"], chart["version"], chart["appVersion"]) == (
        project["name"],
        project["version"],
        project["version"],
    )


def test_network_policy_opens_the_plugins_port() -> None:
    """The port that scrapers reach is the one that the container has."""
    (port,) = re.findall(r"port: (\d+)", TEMPLATES["networkpolicy.yaml"])
    (container_port,) = re.findall(r"containerPort: (\d+)", TEMPLATES["daemonset.yaml"])
    assert port == container_port
