"""Record the metrics of plugin processes, one sample a minute, and let promtool evaluate the alert rules.

The processes are ``aosp-plugin serve`` with default settings, apart from paths, what an item sets, and
``verify: file``, because the devices are plain files. A minute passes for a process by its clock (``clock/``), which is
as long as its scan and the scrape take. promtool gets the samples as a rule test.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

from kubelet_standin import Container, Kubelet, Pod
from kubelet_standin.podresources_server import PodResources
from tests.e2e.deploy import parts
from tests.e2e.deploy.parts import DEPLOY, PROJECT, run
from tests.support import DeviceDirectory, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence

RESOURCE: Final = "aosp.io/binder"
PATIENCE: Final = 60.0
"""The limit for waiting, in seconds."""
MINUTE: Final = 60.0
"""Seconds between two samples."""


class Process:
    """``aosp-plugin serve``, and its metrics."""

    def __init__(
        self, world: World, prefix: Sequence[str], environment: Mapping[str, str], keys: dict[str, Any]
    ) -> None:
        self.port = free_port()
        self._log = world.directory / f"log{self.port}"
        configuration = world.directory / f"{self.port}.yaml"
        usual = {
            "version": "v1",
            "device_dir": str(world.devices.directory),
            "kubelet_dir": world.kubelet.directory,
            "pod_resources_socket": world.socket,
            "cdi_dir": str(world.directory / "cdi"),
            "verify": "file",
            "listen": f"127.0.0.1:{self.port}",
        }
        if "provision" in keys:
            del usual["device_dir"]
        configuration.write_text(yaml.safe_dump(usual | keys))
        paths = [str(Path(__file__).with_name("clock")), str(PROJECT)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "aosp_plugin", "serve", "--config", str(configuration)],
                env=os.environ
                | dict(environment)
                | {"FAULTS_CLOCK": str(world.clock), "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def scraped(self) -> dict[str, float]:
        """Return the value of each series by name and labels; empty if the process does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE) as answer:
                text = answer.read().decode()
        except (OSError, urllib.error.URLError):
            return {}
        return {
            series(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the series of a metric that have these labels; NaN if there is none."""
        values = [
            value
            for key, value in self.scraped().items()
            if key.startswith(f"aosp_plugin_{name}{{")
            and all(f'{key_}="{text}"' in key for key_, text in labels.items())
        ]
        return sum(values) if values else float("nan")

    def scans(self) -> float:
        """Return the number of completed scans."""
        return self.value("scans_total", result="ok") + self.value("scans_total", result="failed")

    def log_tail(self) -> str:
        """Return the end of the log."""
        return self._log.read_text(errors="replace")[-1500:]

    def end(self, *, kill: bool = False) -> None:
        """End the process."""
        (self.process.kill if kill else self.process.terminate)()
        self.process.wait(PATIENCE)


class World:
    """A node: devices, kubelet and plugin processes; and the samples that were recorded."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.devices = DeviceDirectory(directory / "dev")
        self.kubelet = Kubelet(directory / "k")
        self.socket = str(directory / "pods.sock")
        self.clock = directory / "clock"
        self.clock.write_bytes(bytes(8))
        self.processes: dict[str, Process] = {}
        """By the label ``instance`` of their samples."""
        self.starts = 0
        """Number of processes so far."""
        self._offset = 0.0
        self._minutes: list[dict[str, float]] = []
        self._expected: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def running(
        self,
        instance: str = "a",
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        **keys: Any,
    ) -> Iterator[Process]:
        """Run a plugin with these variables and keys of the configuration, whose metrics are scraped."""
        self.starts += 1
        process = self.processes[instance] = Process(self, prefix, environment, keys)
        try:
            yield process
        finally:
            self.processes.pop(instance, None)
            process.end(kill=True)

    def let_everyone_in(self) -> None:
        """Give every user the rights to the directories and the sockets."""
        for path in (self.directory, self.devices.directory, Path(self.kubelet.directory)):
            path.chmod(0o777)
        for socket in (self.kubelet.socket_path, self.socket):
            Path(socket).chmod(0o777)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition, which is evaluated in another thread. Raises AssertionError."""
        end = time.monotonic() + PATIENCE
        while not await asyncio.to_thread(condition):
            logs = "".join(process.log_tail() for process in self.processes.values())
            assert time.monotonic() < end, f"{what}: not within {PATIENCE:.0f} s; {self.kubelet.describe()}\n{logs}"
            await asyncio.sleep(0.02)

    async def registered(self, process: Process, count: int) -> None:
        """Wait until the kubelet has so many healthy devices, and the plugin is registered."""
        await self.until(
            lambda: self.kubelet.resource(RESOURCE).allocatable == count, f"the kubelet has {count} devices"
        )
        await self.until(lambda: process.value("registered") == 1, "the plugin is registered")

    async def confirmed(self, process: Process, count: int) -> None:
        """Wait until the plugin has asked the kubelet, and knows that it has so many healthy devices.

        Seconds pass by the plugin's clock, because it waits for one before it asks, and repeats it after some.
        """

        def asked() -> bool:
            self._advance(2.0)
            return process.value("kubelet_allocatable") == count

        await self.until(asked, f"the plugin knows that the kubelet has {count} devices")

    async def admit(self, count: int, name: str = "phone") -> Sequence[str]:
        """Start a pod with so many devices; return their IDs."""
        admitted = await self.kubelet.admit(Pod(name, [Container("android", {RESOURCE: count})]))
        ids: Sequence[str] = admitted.containers["android"].device_ids[RESOURCE]
        return ids

    async def pass_minutes(self, count: int, *, scans: bool = True) -> None:
        """Let minutes pass, with one sample each. In each of them a scan ends, unless ``scans`` is false."""
        for _ in range(count):
            before = await asyncio.to_thread(self._scans)
            self._advance(MINUTE)
            if scans and before:
                await self.until(lambda before=before: self._scanned_since(before), "a scan")  # type: ignore[misc]
            await asyncio.to_thread(self._scrape)

    def firing(self, *alerts: str, ignoring: str = "") -> None:
        """Expect exactly these alerts to fire in the last minute; ``ignoring`` depends on the machine."""
        firing = f'alertstate="firing", alertname!="{ignoring}"'
        samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts]
        self._expected.append(
            {
                "expr": f"count by (alertname) (count by (alertname, node) (ALERTS{{{firing}}}))",
                "eval_time": f"{len(self._minutes) - 1}m",
                "exp_samples": samples,
            }
        )

    async def fires(self, *alerts: str, within: int, scans: bool = True, ignoring: str = "") -> None:
        """Let minutes pass after which exactly these alerts fire."""
        await self.pass_minutes(within, scans=scans)
        self.firing(*alerts, ignoring=ignoring)

    def check(self) -> None:
        """Check the expected alerts with promtool. Raises AssertionError with its messages."""
        names = sorted(set().union(*self._minutes))
        case = {
            "interval": "1m",
            "input_series": [{"series": name, "values": self._values(name)} for name in names],
            "promql_expr_test": self._expected,
        }
        rules = DEPLOY / "monitoring" / "rules.yaml"
        path = self.directory / "faults.yaml"
        path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [case]}))
        run(parts.promtool(), "test", "rules", str(path))

    def _advance(self, seconds: float) -> None:
        """Let time pass by the clock of the processes."""
        self._offset += seconds
        with self.clock.open("r+b") as file:
            file.write(struct.pack("d", self._offset))

    def _scans(self) -> dict[str, float]:
        """Return the number of completed scans of each process that answers."""
        return {name: count for name, process in self.processes.items() if (count := process.scans()) >= 0}

    def _scanned_since(self, before: dict[str, float]) -> bool:
        now = self._scans()
        return all(now.get(name, count) > count for name, count in before.items())

    def _scrape(self) -> None:
        """Record a sample of each process, with the labels that a scrape adds."""
        self._minutes.append(
            {
                f'{key[:-1]}, instance="{name}", node="n1"}}': value
                for name, process in self.processes.items()
                for key, value in process.scraped().items()
            }
        )

    def _values(self, name: str) -> str:
        """Return the values of a series; Prometheus marks one that a scrape does not find any more as stale."""
        values, last = [], False
        for minute in self._minutes:
            present = name in minute
            values.append(f"{minute[name]:.9f}" if present else "stale" if last else "_")
            last = present
        return " ".join(values)


def series(name: str, labels: dict[str, str]) -> str:
    """Return a series as promtool writes it, with at least one label."""
    listed = ", ".join(f'{label}="{value}"' for label, value in {"job": "plugin", **labels}.items())
    return f"{name}{{{listed}}}"


def item(scenario: Callable[[World], Coroutine[None, None, None]]) -> Callable[[], None]:
    """Return the item of a scenario, which runs it and checks the expected alerts."""

    def check() -> None:
        asyncio.run(_check(scenario))

    check.__doc__ = scenario.__doc__
    return check


async def _check(scenario: Callable[[World], Coroutine[None, None, None]]) -> None:
    async with _world() as world:
        await scenario(world)
        await asyncio.to_thread(world.check)


@contextlib.asynccontextmanager
async def _world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        world = World(Path(directory))
        async with world.kubelet, PodResources(world.kubelet, world.socket):
            yield world
