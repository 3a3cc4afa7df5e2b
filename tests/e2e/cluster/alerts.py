"""Which alerts of deploy/monitoring/rules.yaml fire if the metrics of the plugin's pods stay as they are.

A Prometheus would scrape for minutes. Here each pod is scraped once, through the API server, and promtool evaluates the
rules on samples that repeat these values, with the labels that a scrape adds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.cluster import plugin
from tests.e2e.deploy.items_monitoring import series
from tests.e2e.deploy.parts import DEPLOY, run

if TYPE_CHECKING:
    from tests.e2e.cluster.cluster import Cluster

_MINUTES: Final = 20
"""Longer than any rule of a state has to hold."""
_FIRING: Final = 'count by (alertname, node) (ALERTS{alertstate="firing"})'
_SCANS: Final = 'aosp_plugin_scans_total{job="plugin", resource="aosp.io/phone", result="ok"'


def firing(cluster: Cluster) -> set[tuple[str, str]]:
    """Return name and node of each alert that fires after some minutes of the present state."""
    samples = []
    for pod in plugin.pods(cluster):
        more = f', instance="{pod["metadata"]["name"]}", node="{pod["spec"]["nodeName"]}"}}'
        for family in text_string_to_metric_families(plugin.metrics(cluster, pod)):
            for sample in family.samples:
                name = series(sample.name, sample.labels)[:-1]
                # A scan ends at least once a minute.
                step = 1 if name == _SCANS else 0
                samples.append({"series": name + more, "values": f"{sample.value:.9f}+{step}x{_MINUTES}"})
    case = {
        "interval": "1m",
        "input_series": samples,
        "promql_expr_test": [{"expr": _FIRING, "eval_time": f"{_MINUTES}m", "exp_samples": []}],
    }
    path = cluster.directory / "alerts.yaml"
    rules = str(DEPLOY / "monitoring/rules.yaml")
    path.write_text(yaml.safe_dump({"rule_files": [rules], "evaluation_interval": "1m", "tests": [case]}))
    try:
        run(str(cluster.parts.promtool), "test", "rules", str(path))
    except AssertionError as error:
        # promtool prints the alerts that fire, because none were expected.
        found = set(re.findall(r'\{alertname="(\w+)", node="([\w-]+)"\}', str(error)))
        if not found:
            raise
        return found
    return set()
