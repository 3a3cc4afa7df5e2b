"""Record the metrics of a running plugin, one sample a minute, and let promtool evaluate the alert rules.

A simulated minute is one scan and one scrape, and takes no longer than these. promtool gets the samples as a rule test.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

from aosp_plugin.framework import DevicePlugin, ListedDevices
from aosp_plugin.framework.service.metrics import Metrics
from aosp_plugin.testing import Kubelet
from tests.e2e.deploy import parts
from tests.e2e.deploy.parts import DEPLOY, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

RESOURCE: Final = "aosp.io/binder"
PATIENCE: Final = 60.0
"""The limit for waiting, in seconds."""


class Recorder:
    """The plugin, its kubelet, and the recorded samples."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.kubelet = kubelet
        self.scan_released = threading.Event()
        """Scans hang while this event is not set."""
        self.scan_released.set()
        self._minutes: list[dict[str, float]] = []
        self._expected: list[dict[str, Any]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[DevicePlugin]:
        """Run the plugin, with metrics that start at zero as in a new process."""
        self._metrics = Metrics()
        self.plugin = DevicePlugin(
            ListedDevices(RESOURCE, self._devices, directories=()),
            kubelet_dir=self.kubelet.directory,
            observer=self._metrics.observer(RESOURCE),
        )
        task = asyncio.create_task(self.plugin.run())
        try:
            yield self.plugin
        finally:
            self.plugin.stop()
            if not self.scan_released.is_set():
                task.cancel()  # as at the end of a process
            await asyncio.wait({task})

    def _devices(self) -> list[str]:
        self.scan_released.wait()
        return ["/dev/aosp_binder0"]

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition. Raises AssertionError."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    await asyncio.sleep(0.01)
        assert condition(), f"{what}: not within {PATIENCE:.0f} s; {self.plugin.unready!r}, {self.plugin.unhealthy!r}"

    async def registered(self) -> None:
        """Wait until the kubelet has the device and the plugin is ready."""
        await self.until(lambda: self.kubelet.resource(RESOURCE).allocatable == 1, "the kubelet has the device")
        await self.until(lambda: not self.plugin.unready, "the plugin is ready")

    async def pass_minutes(self, count: int) -> None:
        """Simulate minutes: one scan, unless scans hang, and one scrape each."""
        for _ in range(count):
            before = self._scans()
            self.plugin.rescan()
            if self.scan_released.is_set():
                await self.until(lambda before=before: self._scans() > before, "a scan")  # type: ignore[misc]
            self._minutes.append(self._scraped())

    def firing(self, *alerts: str) -> None:
        """Expect exactly these alerts to fire in the last minute."""
        samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts]
        self._expected.append(
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{len(self._minutes) - 1}m",
                "exp_samples": samples,
            }
        )

    def check(self) -> None:
        """Check the expected alerts with promtool. Raises AssertionError with its messages."""
        series = sorted(set().union(*self._minutes))
        case = {
            "interval": "1m",
            "input_series": [{"series": name, "values": self._values(name)} for name in series],
            "promql_expr_test": self._expected,
        }
        rules = DEPLOY / "monitoring" / "rules.yaml"
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "faults.yaml")
            path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [case]}))
            run(parts.promtool(), "test", "rules", str(path))

    def _values(self, name: str) -> str:
        return " ".join(f"{minute[name]:.9f}" if name in minute else "_" for minute in self._minutes)

    def _scans(self) -> float:
        name = "aosp_plugin_scans_total"
        return sum(value for series, value in self._scraped().items() if series.startswith(name))

    def _scraped(self) -> dict[str, float]:
        """Return the value of each series, with the labels that a scrape adds."""
        _, text = self._metrics.exposition()
        scraped = {}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                labels = {**sample.labels, "instance": "a", "node": "n1"}
                listed = ", ".join(f'{label}="{value}"' for label, value in labels.items())
                scraped[f"{sample.name}{{{listed}}}"] = sample.value
        return scraped


@contextlib.asynccontextmanager
async def recorder_of_plugin() -> AsyncIterator[Recorder]:
    """Run a kubelet, and check the expected alerts at the end."""
    logging.getLogger("aosp_plugin").addHandler(logging.NullHandler())  # keeps log lines out of the report
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        async with Kubelet(directory) as kubelet:
            recorder = Recorder(kubelet)
            try:
                yield recorder
            finally:
                recorder.scan_released.set()
    recorder.check()
