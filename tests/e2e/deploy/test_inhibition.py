"""The alerts of running plugins in Prometheus and Alertmanager."""

import contextlib
import json
import sys
import textwrap
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.common.processes import Daemon
from tests.e2e.common.waiting import until
from tests.e2e.deploy.conftest import Render
from tests.e2e.deploy.manifests import the
from tests.e2e.deploy.parts import PROJECT, of_prometheus
from tests.support import free_port

NODES: Final = ("n1", "n2", "n3")
OTHER: Final = "n4"
"""A node with another resource."""
_AT_ONCE: Final = "prometheusRule.customRules.AospPluginNotRegistered.for=0s"


def test_alertmanager_mutes_alerts_of_plugins_with_the_rules_of_monitoring_md_only(
    charted: Render, short_directory: Path
) -> None:
    """It mutes those of the fleet's resource, but not those of other resources."""
    prometheus, alertmanager = of_prometheus("prometheus"), of_prometheus("alertmanager")
    document = (PROJECT / "docs" / "monitoring.md").read_text()
    rules = yaml.safe_load(textwrap.dedent(document[document.index("    inhibit_rules:") :].split("\n\n")[0]))
    managers: dict[str, tuple[dict[str, Any], str]] = {"with rules": (rules, "suppressed"), "without": ({}, "active")}
    at = {name: f"127.0.0.1:{free_port()}" for name in (*NODES, OTHER, *managers, "prometheus")}
    with contextlib.ExitStack() as stack:

        def start(name: str, *command: str, **files: object) -> None:
            """Start a program in a directory of its own, with these YAML files."""
            path = short_directory / name
            path.mkdir()
            for option, content in files.items():
                (path / option).write_text(yaml.safe_dump(content))
            daemon = Daemon(name, [word.format(path) for word in command], path / "log")
            daemon.start()
            stack.callback(daemon.end)

        plugin = (sys.executable, "-m", "aosp_plugin", "serve", "--device-dir={}", "--kubelet-dir={}")
        for name in NODES:
            start(name, *plugin, f"--listen={at[name]}")
        start(OTHER, *plugin, f"--listen={at[OTHER]}", "--resource-name=aosp.io/other")
        manager = (alertmanager, "--config.file={}/config", "--storage.path={}")
        for name, (inhibiting, _) in managers.items():
            config = {"route": {"receiver": "none"}, "receivers": [{"name": "none"}], **inhibiting}
            start(name, *manager, "--cluster.listen-address=", f"--web.listen-address={at[name]}", config=config)
        plugins = [{"targets": [at[name]], "labels": {"node": name}} for name in (*NODES, OTHER)]
        start(
            "prometheus",
            prometheus,
            "--config.file={}/config",
            "--storage.tsdb.path={}",
            f"--web.listen-address={at['prometheus']}",
            "--rules.alert.resend-delay=1s",
            rules=the("PrometheusRule", charted("everything", _AT_ONCE))["spec"],
            config={
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": ["rules"],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": [at[name] for name in managers]}]}]},
                "scrape_configs": [{"job_name": "plugins", "static_configs": plugins}],
            },
        )
        for name, (_, state) in managers.items():
            fleet = ("AospPluginFleetNotRegistered", None, "active")
            single = {("AospPluginNotRegistered", node, state) for node in NODES}
            other = ("AospPluginNotRegistered", OTHER, "active")
            until(partial(_has, at[name], {fleet, *single, other}), f"alerts {name}")


def _has(address: str, expected: set[tuple[str, str | None, str]]) -> bool:
    """Check names, nodes and states of the alerts that Alertmanager has."""
    with urllib.request.urlopen(f"http://{address}/api/v2/alerts") as answer:
        alerts: list[dict[str, Any]] = json.load(answer)
    found = {(each["labels"]["alertname"], each["labels"].get("node"), each["status"]["state"]) for each in alerts}
    assert found == expected, found
    return True
