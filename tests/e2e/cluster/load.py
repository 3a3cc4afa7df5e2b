"""Phones that come and go, and phones that must not be disturbed, while an item causes failures."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.cluster import held, outside, phones, plugin
from tests.e2e.cluster.cluster import DEVICES
from tests.e2e.common.report import say
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.cluster.cluster import Cluster

PHONES: Final = 12
"""Phones that the machine has devices for."""
STAYING: Final = 4
STAY: Final = "stay"
CHURN: Final = "churn"
_SCALES: Final = (7, 2)
"""The replicas between which the Deployment is scaled; a phone of the old size may still end as the next one begins."""
_STEP: Final = 12.0
"""Seconds after which the Deployment is scaled again, whether its phones run or not."""
_REPORT: Final = 12.0
"""Seconds for which a value on the Node object has to be right; the kubelet reports every 10 s."""


class Load:
    """The phones, and threads that scale the Deployment and observe the machine."""

    def __init__(self, cluster: Cluster) -> None:
        """Use the cluster's first machine, whose plugin has devices for PHONES phones."""
        self._cluster = cluster
        self._end = threading.Event()
        self._errors: set[str] = set()
        self._wrong: list[float] = []
        self._staying: list[dict[str, Any]] = []
        self._devices: dict[str, frozenset[str]] = {}
        self._changes = 0
        self._completed = 0
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._scale, self._observe)]

    def start(self) -> None:
        """Create the phones, and start the threads."""
        phones.create(self._cluster, phones.stateful_set(STAY, STAYING))
        phones.create(self._cluster, phones.deployment(CHURN, _SCALES[1]))
        self._staying = phones.wait_running(self._cluster, STAY, STAYING)
        names = {pod["metadata"]["name"] for pod in self._staying}
        self._devices = {
            pod: devices for pod, devices in held.devices_by_pod(self._cluster.machine).items() if pod in names
        }
        sizes = {pod: len(devices) for pod, devices in self._devices.items()}
        assert sizes == dict.fromkeys(names, plugin.SIZE), sizes
        for thread in self._threads:
            thread.start()

    def wait_settled(self, seconds: float, since: float) -> float:
        """Wait until the Node object has the right capacity, for longer than the kubelet needs to report it.

        Returns the seconds from ``since`` to the last wrong value, 0 if there was none. Raises AssertionError if a
        value was wrong more than ``seconds`` after ``since``.
        """

        def settled() -> bool:
            last = max([since, *self._wrong])
            assert last - since <= seconds, f"capacity or allocatable is wrong after {last - since:.1f} s"
            return time.monotonic() - last > _REPORT

        until(settled, "capacity and allocatable are right", seconds=seconds + _REPORT + PATIENCE)
        return max([since, *self._wrong]) - since

    def wait_scaled(self) -> None:
        """Wait until the Deployment was scaled up and down successfully."""
        before = self._completed
        until(lambda: self._completed >= before + len(_SCALES) + 1, "phones come and go", seconds=4 * PATIENCE)

    def check(self) -> None:
        """Check that nothing was observed that must not be, and that API server, kubelet and kernel agree."""
        ended = [thread.name for thread in self._threads if not thread.is_alive()]
        assert not ended, f"threads have failed: {ended}"
        assert not self._errors, "; ".join(sorted(self._errors))
        now = phones.wait_running(self._cluster, STAY, STAYING)
        before = {pod["metadata"]["uid"]: phones.container_of(pod) for pod in self._staying}
        assert {pod["metadata"]["uid"]: phones.container_of(pod) for pod in now} == before, "a phone was restarted"
        for pod in now:
            self._check_inside(pod["metadata"]["name"])
        until(self._agrees, "kubelet and kernel report the same devices")

    def stop(self) -> int:
        """Stop the threads and remove the phones; return how many times the Deployment was scaled."""
        self._end.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE)
        phones.remove(self._cluster, "Deployment", CHURN)
        phones.remove(self._cluster, "StatefulSet", STAY)
        return self._changes

    def rejected(self) -> list[str]:
        """Return the messages of the Deployment's pods that the kubelet has rejected."""
        pods = self._cluster.api.list(phones.collection("Pod"), labelSelector=f"app={CHURN}")
        return [pod["status"].get("message", "") for pod in pods if pod["status"].get("phase") == "Failed"]

    def _check_inside(self, pod: str) -> None:
        """Check from inside of a phone that it can open its devices, and no others are there."""
        script = "for d in /dev/aosp_binder*; do (: <> $d) && echo ${d#/dev/}; done"
        opened = self._cluster.kubectl("exec", pod, "--", "/bin/busybox", "sh", "-c", script).split()
        assert set(opened) == self._devices[pod], f"{pod} opens {opened}, it had {sorted(self._devices[pod])}"

    def _agrees(self) -> bool:
        machine = self._cluster.machine
        known = outside.observe(machine).allocated
        assert known is not None, "the kubelet does not answer"
        sets = [device for devices in known.values() for device in devices]
        assert len(sets) == len(set(sets)), f"two pods have a device in podresources: {known}"
        running = held.devices_by_pod(machine).keys()
        assert {pod for _, pod in known} == running, f"podresources {sorted(known)}, kernel {sorted(running)}"
        return True

    def _scale(self) -> None:
        """Scale the Deployment up and down; the control plane may be away at any time."""
        for replicas in itertools.cycle(_SCALES):
            if self._end.is_set():
                return
            with contextlib.suppress(OSError):
                path = f"{phones.collection('Deployment')}/{CHURN}"
                self._cluster.api.patch(path, {"spec": {"replicas": replicas}})
                self._changes += 1
            end = time.monotonic() + _STEP
            while time.monotonic() < end and not self._end.wait(0.5):
                with contextlib.suppress(OSError):
                    if len(phones.running(self._cluster, CHURN)) == replicas:
                        self._completed += 1
                        break

    def _observe(self) -> None:
        """Compare, all the time, what containers have, and what the Node object says."""
        machine = self._cluster.machine
        while not self._end.wait(0.3):
            try:
                found, now = held.conflicts(machine), held.devices_by_pod(machine)
            except OSError:  # a process has ended meanwhile
                continue
            if found:
                self._errors.add(f"two running containers have the same device: {found}")
            for pod, devices in self._devices.items():
                if now.get(pod) != devices:
                    self._errors.add(f"{pod} had {sorted(devices)}, has {sorted(now.get(pod, ()))}")
            try:
                right = plugin.capacity(self._cluster, machine) == (PHONES, PHONES)
            except (OSError, LookupError):
                right = False
            if not right:
                self._wrong.append(time.monotonic())


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Load]:
    """Run phones that come and go on the first machine, with a plugin; check all of them at the end."""
    prepare(cluster)
    load = Load(cluster)
    load.start()
    try:
        yield load
        load.check()
        rejected = load.rejected()
    finally:
        changes = load.stop()
    say(f"#   scaled {changes} times; pods rejected: {len(rejected)} {sorted(set(rejected))}")


def prepare(cluster: Cluster, count: int = PHONES, **values: Any) -> None:
    """Install the plugin on the first machine, with devices for a number of phones."""
    cluster.machine.nodes("create", "--stand-ins", "--count", str(plugin.SIZE * count))
    plugin.install(cluster, **values)
    plugin.wait_allocatable(cluster, cluster.machine, count)


def clean_up(cluster: Cluster) -> None:
    """Uninstall the plugin, and leave the first machine with the devices that it booted with."""
    plugin.uninstall(cluster)
    cluster.machine.nodes("delete")
    cluster.machine.nodes("create", "--stand-ins", "--count", str(DEVICES))
