"""What a process does not load that does not use it: it takes megabytes of memory, or delays the start."""

from __future__ import annotations

import subprocess
import sys


def require_not_loaded(by: str, *modules: str) -> None:
    """Run statements in a process of its own, and require that these modules are not loaded after it."""
    script = f"import sys\n{by}\nassert not {set(modules)!r} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], check=True)  # noqa: S603 - a script of this test


def test_the_framework_loads_no_dependencies() -> None:
    require_not_loaded("import aosp_plugin.framework", "grpc", "google.protobuf", "watchdog")


def test_a_process_without_dra_does_not_load_aiohttp() -> None:
    """Nor the library of metrics before they are scraped."""
    modules = "aosp_plugin.cli.main, aosp_plugin.daemon.serve, aosp_plugin.report.node_features"
    metrics = "from aosp_plugin.framework.service.metrics import Metrics\nmetrics = Metrics(exposed=False)\n"
    events = "metrics.observer('aosp.io/a').scanned('ok', 1.0)"
    by = f"import {modules}, kubelet_standin.pytest_plugin\n{metrics}{events}"
    require_not_loaded(by, "aiohttp", "yarl", "multidict", "prometheus_client")
