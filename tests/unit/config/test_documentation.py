"""The generated parts of documents, and what docs/configuration.md says by hand."""

import re
from pathlib import Path

import pytest
import yaml

from aosp_plugin.backend.parameters import API_VERSION, KIND
from aosp_plugin.framework.dra.api_claims import MAX_RECORD_BYTES
from hack import docs

PAGE = docs.CONFIGURATION.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"(?s)```yaml\n(.*?)```", PAGE)


@pytest.mark.parametrize("path", docs.files(), ids=lambda path: str(path.relative_to(docs.ROOT)))
def test_generated_parts_are_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == docs.files()[path], "run make generate"


def test_every_table_has_its_place() -> None:
    assert re.findall(r"<!-- make generate: (.*) -->\n\n\| key \|", PAGE) == [
        "keys of a resource",
        "keys of the process",
        "parameters of claims",
    ]


def test_parameters_have_the_version_and_limit_of_the_code() -> None:
    parameters = yaml.safe_load(EXAMPLES[0])["opaque"]["parameters"]
    assert (parameters["apiVersion"], parameters["kind"]) == (API_VERSION, KIND)
    assert f"{MAX_RECORD_BYTES // 1024} KiB of JSON" in PAGE
