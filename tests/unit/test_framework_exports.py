"""The public names of ``aosp_plugin.framework``, some of which are loaded on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aosp_plugin import framework


@pytest.mark.parametrize(
    "script",
    [
        "import sys, aosp_plugin.framework; assert not {'grpc', 'google.protobuf', 'watchdog'} & sys.modules.keys()",
        "from aosp_plugin import framework; assert {*framework.__all__} <= {*dir(framework)}",
        "from aosp_plugin.framework import *; import aosp_plugin.framework as f; assert {*f.__all__} <= {*globals()}",
    ],
    ids=["import loads no dependencies", "dir", "import star"],
)
def test_public_names_are_available_before_their_modules_are_loaded(script: str) -> None:
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603 - a script of this test


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = framework.missing
