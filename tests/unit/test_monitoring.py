"""Alerts, dashboard and runbook: they name what there is, and each other. `make test-deploy` asks promtool."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from aosp_plugin.binder.discovery.health import Reason
from aosp_plugin.daemon.leaks import Leaks
from aosp_plugin.framework.inventory import Device, Snapshot
from aosp_plugin.framework.service.metrics import CODES, Metrics

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")

(GROUP,) = yaml.safe_load((MONITORING / "rules.yaml").read_text(encoding="utf-8"))["groups"]
RULES = {rule["alert"]: rule for rule in GROUP["rules"]}
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def exposed() -> dict[str, set[str]]:
    """Return the name of each sample that the plugin exposes, and its labels."""
    resource = "aosp.io/binder"
    metrics = Metrics(
        Reason, leaks=lambda: {resource: Leaks((), (), 0, all_visible=True)}, allocated=lambda: {resource: 1}
    )
    metrics.observer(resource).published(Snapshot(1, [Device("aosp_binder0")]), None)
    _, text = metrics.exposition()
    families = text_string_to_metric_families(text.decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


EXPOSED = exposed()

USES = [
    *(pytest.param(rule["expr"], id=name) for name, rule in RULES.items()),
    *(
        pytest.param(expression, id=f"{panel['title']} {number}")
        for panel in PANELS
        for number, expression in enumerate(expressions(panel))
    ),
]


def anchors() -> set[str]:
    """Return what links to the runbook's headings can say, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", RUNBOOK, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("expression", USES)
def test_metrics_exist(expression: str) -> None:
    """Each metric that an alert or a panel names is one that the plugin exposes."""
    named = set(re.findall(r"\b(?:aosp_plugin|process)_\w+", expression))
    assert named
    assert named <= EXPOSED.keys()


@pytest.mark.parametrize("expression", USES)
def test_labels_exist(expression: str) -> None:
    """Each label that is asked for is the metric's, or comes with the scrape."""
    for name, selector in re.findall(r"\b((?:aosp_plugin|process)_\w+)\{([^}]*)\}", expression):
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert asked <= EXPOSED[name] | {"node", "instance"}, name


@pytest.mark.parametrize("expression", USES)
def test_label_values_exist(expression: str) -> None:
    """Each value of health, reason, result and code is one that the plugin sets."""
    known = {
        "health": {"healthy", "unhealthy"},
        "reason": {"", *Reason},
        "result": {"ok", "failed", "refused", "hung"},
        "code": set(CODES),
    }
    for label, value in re.findall(r'\b(health|reason|result|code)(?:=~|!=|=)"([^"]*)"', expression):
        assert set(value.split("|")) <= known[label], f"{label}={value}"


def test_every_metric_is_shown() -> None:
    """The dashboard shows each of the plugin's own metrics."""
    shown = " ".join(expression for panel in PANELS for expression in expressions(panel))
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in EXPOSED if name.startswith("aosp_plugin_")}
    assert [name for name in sorted(families) if name not in shown] == []


def test_dashboard_is_for_any_prometheus() -> None:
    """Every panel takes its data source from the variable, and the node and resource from theirs where it has them."""
    names = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert names == ["datasource", "node", "resource"]
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        assert all("$node" in expression for expression in expressions(panel)), panel["title"]


def test_panels_have_room() -> None:
    """No two panels are at one place, none is beyond the 24 columns, and each has an ID of its own."""
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert all(x < 24 for x, _ in places)
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(identifiers) == len(set(identifiers))


@pytest.mark.parametrize("name", RULES)
def test_alerts_say_what_to_do(name: str) -> None:
    """Each alert has a severity, a summary and a link to its own heading in the runbook."""
    rule = RULES[name]
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
    assert name.lower() in anchors()


def test_every_alert_is_tried() -> None:
    """The tests of the rules have each alert fire."""
    text = (MONITORING / "rules_test.yaml").read_text(encoding="utf-8")
    fired = set(re.findall(r'alertname="(\w+)"', text)) | {
        test["alertname"]
        for case in yaml.safe_load(text)["tests"]
        for test in case.get("alert_rule_test", ())
        if test["exp_alerts"]
    }
    assert fired == RULES.keys()


def test_operator_has_the_same_rules() -> None:
    """The PrometheusRule has the groups of the rules file."""
    document = yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text(encoding="utf-8"))
    assert document["kind"] == "PrometheusRule"
    assert document["spec"] == {"groups": [GROUP]}


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_in_the_runbook(reason: Reason) -> None:
    """Each reason of an Unhealthy device has a heading."""
    assert reason.value in anchors()


@pytest.mark.parametrize(
    "text",
    [
        "Insufficient aosp.io/binder",
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices aosp.io/binder, which is",
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices aosp.io/binder",
        "Allocate failed due to cannot allocate unregistered device aosp.io/binder, which is unexpected",
        "requested number of devices unavailable for aosp.io/binder. Requested: 3, Available: 1, which is unexpected",
        "due to rpc error: code = FailedPrecondition desc = device 'aosp_binder3' is unhealthy: replaced, which is",
        "device plugin PreStartContainer rpc failed with err: rpc error: code = FailedPrecondition desc = device",
        "unresolvable CDI devices",
        "No such device or address",
        "Operation not permitted",
    ],
)
def test_what_pods_fail_with_can_be_searched_for(text: str) -> None:
    """The kubelet's words, and the kernel's, stand in the runbook in one line."""
    assert text in RUNBOOK


def test_runbook_has_no_alert_of_its_own() -> None:
    """A heading that looks like an alert is one."""
    assert set(re.findall(r"^#+ (AospPlugin\w+)$", RUNBOOK, flags=re.MULTILINE)) == RULES.keys()


def test_links_of_the_runbook_lead_somewhere() -> None:
    """Links within the runbook name a heading, and links to other documents a file."""
    for target in re.findall(r"\]\(([^)]+)\)", RUNBOOK):
        if target.startswith("#"):
            assert target[1:] in anchors(), target
        elif "://" not in target:
            assert (ROOT / "docs" / target.partition("#")[0]).exists(), target
