"""aiohttp is loaded only where the API server is used: it takes megabytes of memory."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "modules",
    [
        "aosp_plugin.framework",
        "aosp_plugin.framework.deviceplugin.plugin",
        "aosp_plugin.daemon.serve",
        "aosp_plugin.cli.main",
        "aosp_plugin.report.node_reporter, aosp_plugin.report.node_features",
        "kubelet_standin",
        "kubelet_standin.pytest_plugin",
        "aosp_plugin.framework.apiserver.protocol, aosp_plugin.framework.timings",
        "aosp_plugin.framework.apiserver.credentials, aosp_plugin.framework.apiserver.protocol",
    ],
)
def test_a_process_without_dra_does_not_load_aiohttp(modules: str) -> None:
    script = f"import sys, {modules}; assert not {{'aiohttp', 'yarl', 'multidict'}} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603 - a script of this test
