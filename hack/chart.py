#!/usr/bin/env python3
"""Write what under deploy/ is made of something else: ``make chart``.

The chart's values.schema.json follows from the plugin's own configuration; what a chart can only read from its own
directory is copied there; and the rules are wrapped for the Prometheus operator.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from aosp_plugin import config

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
CHART = DEPLOY / "chart"

_MADE = "# Made by `make chart` of deploy/{}; change it there.\n"

_TEXT = {"type": "string"}
_SWITCH = {"type": "boolean"}
_OBJECT = {"type": "object"}
_OBJECTS = {"type": "array", "items": _OBJECT}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}


def _values(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _switched(**properties: Any) -> dict[str, Any]:
    return _values(enabled=_SWITCH, **properties)


def values_schema() -> dict[str, Any]:
    """Return the JSON Schema of the chart's values: draft 07, as Helm before 3.18 knows no later one.

    What the API server checks anyway (tolerations, affinity, resources and their like) is left to it.
    """
    configuration = {name: part for name, part in config.schema().items() if name != "$schema"}
    image = {
        "repository": _TEXT | {"minLength": 1},
        "tag": _TEXT,
        "digest": _TEXT | {"pattern": "^(sha256:[0-9a-f]{64})?$"},
        "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
        "pullSecrets": _OBJECTS,
    }
    # Two plugins on one node would take the resource from each other.
    rolling = {"type": "object", "properties": {"maxSurge": {"enum": [0, "0%"]}}}
    return {"$schema": "http://json-schema.org/draft-07/schema#"} | _values(
        config=configuration,
        image=_values(**image),
        provision=_switched(),
        nameOverride=_TEXT,
        fullnameOverride=_TEXT,
        podAnnotations=_TEXTS,
        podLabels=_TEXTS,
        nodeSelector=_TEXTS,
        tolerations=_OBJECTS,
        affinity=_OBJECT,
        priorityClassName=_TEXT,
        updateStrategy={"type": "object", "properties": {"rollingUpdate": rolling}},
        resources=_OBJECT,
        # An empty list would let everybody in.
        networkPolicy=_switched(**{"from": _OBJECTS | {"minItems": 1}}),
        podMonitor=_switched(interval=_TEXT, labels=_TEXTS),
        prometheusRule=_switched(labels=_TEXTS, runbook=_TEXT | {"minLength": 1}),
        dashboard=_switched(labels=_TEXTS),
        nodeFeatureRule=_switched(),
        **{"global": _OBJECT},  # Helm's, where the chart is part of another one
    )


def prometheus_rule(rules: str) -> str:
    """Return a rules file as the Prometheus operator takes it."""
    head = textwrap.dedent(
        """\
        apiVersion: monitoring.coreos.com/v1
        kind: PrometheusRule
        metadata:
          name: aosp-device-plugin
          namespace: kube-system
          labels:
            app.kubernetes.io/name: aosp-device-plugin
        spec:
        """
    )
    return head + textwrap.indent(rules, "  ")


def files() -> dict[Path, str]:
    """Return the text of each file that is made."""
    made = {CHART / "values.schema.json": json.dumps(values_schema(), indent=2) + "\n"}
    for source in ("monitoring/rules.yaml", "monitoring/dashboard.json", "nfd/nodefeaturerule.yaml"):
        text = (DEPLOY / source).read_text(encoding="utf-8")
        head = _MADE.format(source) if source.endswith(".yaml") else ""
        made[CHART / "files" / Path(source).name] = head + text
    rules = (DEPLOY / "monitoring" / "rules.yaml").read_text(encoding="utf-8")
    head = _MADE.format("monitoring/rules.yaml")
    made[DEPLOY / "monitoring" / "prometheusrule.yaml"] = head + prometheus_rule(rules)
    return made


def main() -> None:
    """Write them."""
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
