"""Values files for Kubernetes distributions fit their layouts. ``make test-deploy`` renders them with Helm."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from aosp_plugin.config import keys
from hack.chart import CHART
from tests.layouts import DEVICE_PLUGINS, DIRECTORY, LAYOUTS, Layout, values_file

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def values(layout: Layout) -> dict[str, Any]:
    """Return the values of a distribution."""
    found: dict[str, Any] = yaml.safe_load(values_file(layout).read_text(encoding="utf-8"))
    return found


def test_each_layout_has_a_values_file_and_each_file_a_layout() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == {values_file(layout).name for layout in LAYOUTS}


@every_layout
def test_the_values_are_accepted_by_the_schema(layout: Layout) -> None:
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(values(layout))] == []


@every_layout
def test_the_values_name_the_directories_of_the_kubelet(layout: Layout) -> None:
    assert values(layout)["kubelet"] == {"rootDir": layout.root, "devicePluginsDir": DEVICE_PLUGINS}


@every_layout
def test_cdi_files_are_written_where_the_runtime_reads_them_and_the_pod_can_write(layout: Layout) -> None:
    directory = values(layout).get("config", {}).get("cdi_dir", keys.DEFAULTS["cdi_dir"])
    directory = directory.replace("/var/run/", "/run/")
    assert directory in layout.cdi
    assert not directory.startswith(layout.read_only)


@every_layout
def test_the_selinux_type_exists_in_the_policy_of_the_distribution(layout: Layout) -> None:
    options = values(layout).get("securityContext", {}).get("seLinuxOptions", {})
    assert options.get("type", "") == layout.selinux
    assert not layout.selinux or layout.selinux in layout.types
