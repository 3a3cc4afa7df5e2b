"""Generated files of the Helm chart. ``make test-deploy`` shows what Helm accepts, refuses and renders."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft7Validator

from aosp_plugin.config import keys
from hack.chart import CHART, DEPLOY, files

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_a_generated_file_is_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == files()[path], "run `make generate`"


def test_the_schema_is_draft_7_which_every_helm_supports() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert "draft-07" in SCHEMA["$schema"]
    assert json.dumps(SCHEMA).count("$schema") == 1


def test_the_schema_accepts_every_key_of_the_configuration() -> None:
    part = SCHEMA["definitions"]["config"]
    assert part["properties"].keys() == {"version"} | keys.KEYS.keys() | {"resources"}
    assert part["additionalProperties"] is False
