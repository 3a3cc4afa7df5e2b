"""Alert rules, metrics and dashboard, checked with promtool."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from aosp_plugin.framework.backend import Device
from aosp_plugin.framework.inventory import Snapshot
from aosp_plugin.framework.metrics import Metrics
from tests.e2e.deploy.conftest import Tool
from tests.e2e.deploy.parts import CHART, HERE
from tests.reports import state_metrics

FILES: Final = CHART / "files"
STATES: Final = yaml.safe_load((HERE / "alerts.yaml").read_text())
RESOURCE: Final = "aosp.io/binder"
DEVICES: Final = 10
_FIRING: Final = """group by (alertname) (ALERTS{alertstate="firing"}
  unless ALERTS{node="", alertname!~"AospPlugin(Absent|DevicesNearlyUsedUp|Fleet.*)"})"""
"""The alerts that fire; an alert about a node counts only if it names the node."""


def test_promtool_accepts_the_alert_rules(promtool: Tool) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(FILES / "rules.yaml"))


def test_in_each_state_of_alerts_yaml_exactly_its_alerts_fire(promtool: Tool, tmp_path: Path) -> None:
    """On the series that the plugin exposes."""
    _require(STATES, promtool, tmp_path)
    stopped = STATES["the kubelet is stopped"]
    with pytest.raises(AssertionError, match="AospPluginNotRegistered"):
        _require({"other alerts": {**stopped, "alerts": {26: []}}}, promtool, tmp_path)


def _require(states: dict[str, Any], promtool: Tool, directory: Path) -> None:
    """Check which alerts fire in states. Raises AssertionError with promtool's messages."""
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [
                entry
                for number, process in enumerate(state["processes"])
                for entry in _series(process, f"plugin-{number}")
            ],
            "promql_expr_test": [
                {
                    "expr": _FIRING,
                    "eval_time": f"{minute}m",
                    "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in firing],
                }
                for minute, firing in state["alerts"].items()
            ],
        }
        for name, state in states.items()
    ]
    content = {"rule_files": [str(FILES / "rules.yaml")], "evaluation_interval": "1m", "tests": tests}
    (directory / "alerts.yaml").write_text(yaml.safe_dump(content))
    promtool("test", "rules", str(directory / "alerts.yaml"))


def _series(process: dict[str, Any], instance: str) -> list[dict[str, str]]:
    """Return the series of a process, whose keys that are no minutes name those that differ."""
    begin, end, node = process.get("from", 0), process.get("to", 100), process.get("node", "n1")
    before = f"_x{begin - 1} " if begin else ""
    of_process = {"from", "to", "node", "resource"}
    unused = process.keys() - of_process
    found = []
    for sample in _healthy(process.get("resource", RESOURCE)):
        counts = (sample.name, sample.labels.get("result")) == ("aosp_plugin_scans_total", "ok")
        values = f"0+1x{end - 1}" if counts else f"{min(sample.value, 1e18)}x{end - 1}"  # +Inf has no notation
        for text in process.keys() - of_process:
            if _is_named(sample, text):
                values = process[text]
                assert isinstance(values, str), f"{text}: YAML reads {values}, as 0x99 without quotes"
                unused -= {text}
        labels = {**sample.labels, "job": "plugin", "instance": instance, "node": node}
        listed = ", ".join(f'{label}="{value}"' for label, value in labels.items())
        found.append({"series": f"{sample.name}{{{listed}}}", "values": f"{before}{values} stale"})
    assert not unused, f"the plugin exposes no such series: {unused}"
    return found


def _is_named(sample: Sample, text: str) -> bool:
    """Return whether a text has the sample's name and some of its labels."""
    name, _, selector = text.partition("{")
    labels = dict(re.findall(r'(\w+)="([^"]*)"', selector))
    return sample.name.removeprefix("aosp_plugin_") == name and labels.items() <= sample.labels.items()


def _healthy(resource: str) -> list[Sample]:
    """Return what the plugin exposes with healthy devices, for both APIs, and what Prometheus adds."""
    metrics = state_metrics(resource)
    metrics.add(resource, is_driver=True)
    metrics.count_devices(resource, Snapshot(1, [Device(f"aosp_binder{number}") for number in range(DEVICES)]))
    metrics.registrations.labels(resource, "ok").inc()
    for gauge, value in {metrics.registered: 1, metrics.kubelet_allocatable: DEVICES}.items():
        gauge.labels(resource).set(value)
    for gauge in (metrics.slices_wanted, metrics.slices_confirmed):
        gauge.labels(resource).set(1)
    for code in ("200", "403"):
        metrics.api_requests.labels(resource, "get", "nodes", code).inc()
        metrics.api_request_duration.labels(resource).observe(0.1)
    text = metrics.exposition()[1].decode()
    exposed = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return [*exposed, Sample("up", {}, 1)]


def test_promtool_accepts_names_units_and_help_of_the_metrics(promtool: Tool) -> None:
    """And refuses a counter without _total."""
    metrics = Metrics("aosp_plugin")
    metrics.add(RESOURCE)
    text = metrics.exposition()[1].decode()
    promtool("check", "metrics", text=text)
    with pytest.raises(AssertionError, match='counter metrics should have "_total" suffix'):
        promtool("check", "metrics", text=text.replace("aosp_plugin_scans_total", "aosp_plugin_scans"))


def test_promtool_parses_the_expressions_of_the_dashboard(promtool: Tool, tmp_path: Path) -> None:
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    texts = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    expressions = [re.sub(r"\$\w+", ".*", text.replace("$__rate_interval", "5m")) for text in texts]
    assert len(expressions) > 20
    recorded = [{"record": f"expression:{number}", "expr": text} for number, text in enumerate(expressions)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    promtool("check", "rules", "--lint=none", str(path))


def test_the_types_of_grafana_take_the_dashboard_and_refuse_a_misspelled_field(dashboard_checker: Tool) -> None:
    text = (FILES / "dashboard.json").read_text()
    dashboard_checker(text=text)
    with pytest.raises(AssertionError, match="unexpected field 'fillOpacities'"):
        dashboard_checker(text=text.replace('"fillOpacity"', '"fillOpacities"'))
