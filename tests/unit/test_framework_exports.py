"""The public names of ``aosp_plugin.framework``, some of which are loaded on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aosp_plugin import framework


def test_import_loads_no_dependencies() -> None:
    script = (
        "import sys, aosp_plugin.framework; assert not {'grpc', 'google.protobuf', 'watchdog'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603 - a script of this test


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = framework.missing
