"""``make generate``: write what the chart has from other sources.

values.schema.json is written by hand, but for three definitions: the plugin's configuration, the parameters of claims,
and the names of alerts. Chart.yaml has the source's version.
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
    # values.yaml has the version, and an entry of nodes has some of the keys only.
    left_out = {"$schema", "required"}
    config = {name: part for name, part in schemas.configuration().items() if name not in left_out}
    # An entry of resources has keys of the top level, with the same values.
    entry = config["properties"]["resources"]["items"]
    entry["properties"] = {name: {"$ref": f"#/definitions/config/properties/{name}"} for name in entry["properties"]}
    # The chart adds these two, which are the same in all.
    added = {"apiVersion", "kind"}
    parameters = {name: part for name, part in schemas.parameters()["properties"].items() if name not in added}
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    document["definitions"] |= {
        "config": config,
        "parameters": {"type": "object", "properties": parameters, "additionalProperties": False},
        "alert": {"enum": [rule["alert"] for rule in group["rules"]]},
    }
    return json.dumps(document, indent=2) + "\n"


def main() -> None:
    """Write the files."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
