"""A plugin that runs, what its metrics are from minute to minute, and which alerts Prometheus makes of them.

A minute is a look at the devices and a scrape, and takes no longer than these. promtool is given what was scraped, in
the form of its tests.
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
"""Seconds after which something counts as not happening."""


class Recorded:
    """The plugin, its kubelet, and what was scraped."""

    def __init__(self, kubelet: Kubelet) -> None:
        self.kubelet = kubelet
        self.look = threading.Event()
        """While it is not set, no look returns."""
        self.look.set()
        self._minutes: list[dict[str, float]] = []
        self._expected: list[dict[str, Any]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[DevicePlugin]:
        """Have the plugin run, as a process that has counted nothing yet."""
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
            if not self.look.is_set():
                task.cancel()  # as a process ends, whatever hangs in it
            await asyncio.wait({task})

    def _devices(self) -> list[str]:
        self.look.wait()
        return ["/dev/aosp_binder0"]

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something holds. Raises AssertionError."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    await asyncio.sleep(0.01)
        assert condition(), f"{what}: not within {PATIENCE:.0f} s; {self.plugin.unready!r}, {self.plugin.unhealthy!r}"

    async def registered(self) -> None:
        """Wait until the kubelet has the device and the plugin knows it."""
        await self.until(lambda: self.kubelet.resource(RESOURCE).allocatable == 1, "the kubelet has the device")
        await self.until(lambda: not self.plugin.unready, "the plugin is ready")

    async def pass_minutes(self, count: int) -> None:
        """Have minutes pass, each with the look that is due then, where looks return."""
        for _ in range(count):
            before = self._looks()
            self.plugin.rescan()
            if self.look.is_set():
                await self.until(lambda before=before: self._looks() > before, "a look")  # type: ignore[misc]
            self._minutes.append(self._scraped())

    def firing(self, *alerts: str) -> None:
        """Expect exactly these alerts as of the last minute."""
        samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts]
        self._expected.append(
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{len(self._minutes) - 1}m",
                "exp_samples": samples,
            }
        )

    def check(self) -> None:
        """Have promtool say what fires. Raises AssertionError with its words."""
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

    def _looks(self) -> float:
        name = "aosp_plugin_scans_total"
        return sum(value for series, value in self._scraped().items() if series.startswith(name))

    def _scraped(self) -> dict[str, float]:
        """Return each series' value, with the labels that a scrape adds."""
        _, text = self._metrics.exposition()
        scraped = {}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                labels = {**sample.labels, "instance": "a", "node": "n1"}
                listed = ", ".join(f'{label}="{value}"' for label, value in labels.items())
                scraped[f"{sample.name}{{{listed}}}"] = sample.value
        return scraped


@contextlib.asynccontextmanager
async def recorded() -> AsyncIterator[Recorded]:
    """Have a kubelet; what was expected is checked at the end."""
    logging.getLogger("aosp_plugin").addHandler(logging.NullHandler())  # a log of its own would be among the results
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        async with Kubelet(directory) as kubelet:
            one = Recorded(kubelet)
            try:
                yield one
            finally:
                one.look.set()
    one.check()
