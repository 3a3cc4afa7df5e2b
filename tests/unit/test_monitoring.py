"""Alerts, dashboard and runbook refer to existing metrics and headings. ``make test-deploy`` runs promtool on them."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from aosp_plugin.binder.devices.health import REASONS, Reason
from aosp_plugin.framework.metrics import CODES
from tests.reports import state_metrics

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "chart" / "files"
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
(GROUP,) = yaml.safe_load((FILES / "rules.yaml").read_text(encoding="utf-8"))["groups"]
RULES = {rule["alert"]: rule for rule in GROUP["rules"]}
DASHBOARD = json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))
PANELS = {panel["title"]: [target["expr"] for target in panel.get("targets", [])] for panel in DASHBOARD["panels"]}
USES = [
    *(pytest.param(rule["expr"], id=name) for name, rule in RULES.items()),
    *(pytest.param(expression, id=title) for title, expressions in PANELS.items() for expression in expressions),
]
LABEL_VALUES = {
    "health": {"healthy", "unhealthy"},
    "reason": {"", *Reason},
    "result": {"ok", "refused", "failed", "hung"},
    "code": set(CODES),
}


def exposed() -> dict[str, set[str]]:
    """Return the labels of each sample that the plugin exposes, by sample name."""
    resource = "aosp.io/binder"
    metrics = state_metrics(resource)
    metrics.add(resource, is_driver=True)
    metrics.kubelet_allocatable.labels(resource).set(1)
    metrics.api_requests.labels(resource, "get", "nodes", "200").inc()
    _, text = metrics.exposition()
    families = text_string_to_metric_families(text.decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


EXPOSED = exposed()


@pytest.mark.parametrize("expression", USES)
def test_an_expression_uses_existing_metrics_labels_and_values(expression: str) -> None:
    names = set(re.findall(r"\b(?:aosp_plugin|process)_\w+", expression))
    assert names
    assert names <= EXPOSED.keys()
    for name, selector in re.findall(r"\b((?:aosp_plugin|process)_\w+)\{([^}]*)\}", expression):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert labels <= EXPOSED[name] | {"node", "instance"}, name
    for label, value in re.findall(r'\b(health|reason|result|code|state)(?:=~|!~|!=|=)"([^"]*)"', expression):
        known = LABEL_VALUES[label]
        http = label == "code" and "aosp_plugin_api_requests_total" in expression
        assert http or set(value.split("|")) <= known, f"{label}={value}"


def test_alerts_on_unhealthy_devices_exclude_exactly_the_deliberate_reasons() -> None:
    """A lowered count pages nobody."""
    deliberate = "|".join(sorted(reason for reason, info in REASONS.items() if info.deliberate))
    alerts = ("AospPluginNoHealthyDevices", "AospPluginDevicesUnhealthy", "AospPluginFleetUnhealthy")
    assert {name: set(re.findall(r'reason!~"([^"]*)"', RULES[name]["expr"])) for name in alerts} == {
        name: {deliberate} for name in alerts
    }


def test_the_dashboard_shows_the_metrics_of_each_alert() -> None:
    shown = " ".join(expression for expressions in PANELS.values() for expression in expressions)
    used = {name for rule in RULES.values() for name in re.findall(r"\b(?:aosp_plugin|process)_\w+", rule["expr"])}
    assert [name for name in sorted(used) if name not in shown] == []


@pytest.mark.parametrize("name", RULES)
def test_an_alert_has_a_heading_in_the_runbook(name: str) -> None:
    """The chart links to it."""
    assert name in re.findall(r"^#+ (.+)$", RUNBOOK, flags=re.MULTILINE), "docs/runbook.md lacks this heading"


def test_an_inhibited_alert_names_one_of_the_rules_for_alertmanager() -> None:
    documented = re.findall(r"inhibited_by = (\w+)", (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8"))
    assert {rule["labels"].get("inhibited_by") for rule in RULES.values()} == {None, *documented}
    assert RULES.keys() >= set(documented)


def test_every_alert_fires_in_a_state_of_make_test_deploy() -> None:
    states = yaml.safe_load((ROOT / "tests" / "e2e" / "deploy" / "alerts.yaml").read_text(encoding="utf-8"))
    fired = {alert for state in states.values() for alerts in state["alerts"].values() for alert in alerts}
    assert fired == RULES.keys(), "tests/e2e/deploy/alerts.yaml needs a state that fires each alert of rules.yaml"
