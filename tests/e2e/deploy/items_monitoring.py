"""Items: alert rules, metrics and dashboard, checked with promtool."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import yaml

from aosp_plugin.framework.service.metrics import Metrics
from tests.e2e.deploy import parts
from tests.e2e.deploy.parts import DEPLOY, run

MONITORING = DEPLOY / "monitoring"


def rules() -> None:
    """promtool accepts the alert rules."""
    run(parts.promtool(), "check", "rules", "--lint=all", "--lint-fatal", str(MONITORING / "rules.yaml"))


def names() -> None:
    """promtool accepts the metrics' names, units and help, and rejects a counter without _total."""
    metrics = Metrics()
    metrics.observer("aosp.io/binder")
    text = metrics.exposition()[1].decode()
    run(parts.promtool(), "check", "metrics", text=text)
    try:
        run(parts.promtool(), "check", "metrics", text=text.replace("aosp_plugin_scans_total", "aosp_plugin_scans"))
    except AssertionError as error:
        assert 'counter metrics should have "_total" suffix' in str(error), error  # noqa: PT017 - no pytest here
    else:
        raise AssertionError("the counter without _total is accepted")


def dashboard() -> None:
    """promtool parses all expressions of the dashboard."""
    expressions = _expressions(json.loads((MONITORING / "dashboard.json").read_text()))
    assert len(expressions) > 30, f"{len(expressions)} expressions"
    recorded = [{"record": f"expression:{number}", "expr": text} for number, text in enumerate(expressions)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "rules.yaml")
        path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
        run(parts.promtool(), "check", "rules", "--lint=none", str(path))


def _expressions(part: Any) -> list[str]:
    """Return every ``expr``, with Grafana's variables replaced."""
    if isinstance(part, list):
        return [text for item in part for text in _expressions(item)]
    if not isinstance(part, dict):
        return []
    own = [re.sub(r"\$\w+", ".*", part["expr"].replace("$__rate_interval", "5m"))] if "expr" in part else []
    return own + [text for value in part.values() for text in _expressions(value)]


ITEMS = (rules, names, dashboard)
