"""``make generate``: write what the chart has from other sources.

values.schema.json is written by hand, but for the plugin's configuration keys, and for the names of the alerts.
Chart.yaml has the source's version.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from aosp_plugin import __version__
from hack import schemas, version

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
CHART = DEPLOY / "chart"
RULES = CHART / "files" / "rules.yaml"


def files() -> dict[Path, str]:
    """Return the content of each file by its path."""
    chart, schema = CHART / "Chart.yaml", CHART / "values.schema.json"
    return {
        chart: version.with_version("deploy/chart/Chart.yaml", chart.read_text(encoding="utf-8"), __version__),
        schema: with_keys(schema.read_text(encoding="utf-8")),
    }


def with_keys(schema: str) -> str:
    """Return values.schema.json with the keys of the configuration and of the parameters of claims, and the alerts."""
    document = json.loads(schema)
    values = document["properties"]
    # The version is required of the whole, not of an entry of nodes, which has some of the keys.
    left_out = {"$schema", "required"}
    values["config"] = {name: part for name, part in schemas.configuration().items() if name not in left_out}
    # The chart adds these two, which are the same in all.
    added = {"apiVersion", "kind"}
    keys = {name: part for name, part in schemas.parameters()["properties"].items() if name not in added}
    device_class = values["dra"]["properties"]["classes"]["additionalProperties"]
    device_class["properties"]["parameters"]["properties"] = keys
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    tuned = values["prometheusRule"]["properties"]
    tuned["disabled"]["properties"] = {name: {"type": "boolean"} for name in alerts}
    tuned["customRules"]["propertyNames"]["enum"] = alerts
    return json.dumps(document, indent=2) + "\n"


def main() -> None:
    """Write the files."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
