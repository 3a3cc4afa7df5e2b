"""A node with a hundred phones: what happens to it, what holds after each event, and the figures that may not grow."""

import contextlib
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from aosp_plugin.binder.driver import binderfs
from tests.e2e.common.processes import run
from tests.e2e.common.sandbox import CGROUPS
from tests.e2e.common.waiting import until
from tests.e2e.deploy.parts import PROJECT
from tests.e2e.kernel import binderfs_mounts, phones
from tests.e2e.kernel.operations import compare, words
from tests.e2e.kernel.phones import NAMES, RESOURCE, path
from tests.e2e.kernel.pods import WORK, PodWorld
from tests.e2e.kernel.systemd import LINKS, linked, numbers
from tests.e2e.kubelet import pods
from tests.e2e.kubelet.crio import ContainerRuntime
from tests.e2e.kubelet.node import Node, Placed
from tests.e2e.kubelet.runtime import process_status, without_scheme
from tests.e2e.kubelet.standalone import PLUGINS, checkpoint

COUNT: Final = 100
KUBELET: Final = Path("/var/lib/kubelet")
EVICTION: Final = {f"{name}.available": size for name, size in (("nodefs", "20%"), ("imagefs", "0%"), ("memory", "0%"))}
"""The kubelet's thresholds."""

_TASKS: Final = WORK / "runtime/state/io.containerd.runtime.v2.task/k8s.io"
_SETTLE: Final = 900.0
_MINORS: Final = 4
"""Those of a phone: binder-control and its devices."""
_FREE: Final = 600
"""Minor numbers that are taken for a moment; more than are free below the largest one that is in use."""
_MAIN: Final = f"""\
box=/bin/busybox
trap 'exit 0' TERM
trap '/bin/probe $($box cat /tmp/tries) >/tmp/out; $box mv /tmp/out /tmp/results' USR1
/bin/probe {" ".join(f"manage /dev/{name}" for name in NAMES)} wait &
: >/tmp/up
while kill -0 $!; do wait $!; done
"""
"""Holds the devices of a phone as their context manager, and tries what the host writes, when it signals.

A process that containerd starts in the container costs the emulated machine a hundred times as much.
"""


@dataclass
class Night:
    """The node, and what it should be like when it is settled."""

    world: PodWorld
    runtime: ContainerRuntime
    random: Random
    count: int = COUNT
    pods: list[Placed] = field(default_factory=list)
    containers: dict[str, str] = field(default_factory=dict)
    """The containers of pods by name, when the node was settled last, and that of the plugin."""
    renewed: set[str] = field(default_factory=set)
    """Those of which another container has to run since then."""
    restarted: set[str] = field(default_factory=set)
    """The pods whose container has ever restarted; a kubelet that starts may reject them."""
    tally: Counter[str] = field(default_factory=Counter)

    @property
    def node(self) -> Node:
        """The node."""
        return self.world.node

    # -- pods

    def place(self, **more: Any) -> Placed:
        """Create a pod with a phone."""
        main = pods.container("main", 1, resource=RESOURCE, command=["/bin/busybox", "sh", "-c", _MAIN])
        self.pods.append(self.node.place(main, name="phone", hostNetwork=True, **more))
        self.tally["pods placed"] += 1
        return self.pods[-1]

    def replace(self, pod: Placed, **more: Any) -> Placed:
        """Delete a pod, and create another one."""
        self.pods.remove(pod)
        self.containers.pop(pod.name, None)
        self.node.remove(pod)
        return self.place(**more)

    def kill(self, name: str) -> None:
        """Kill the first process of a pod's container."""
        os.kill(process(self.containers[name]), signal.SIGKILL)
        self.renewed.add(name)

    def crash(self, count: int) -> None:
        """Kill the first processes of the containers of some pods."""
        for pod in self.random.sample(self.pods, count):
            if pod.name in self.containers.keys() - self.renewed:
                self.kill(pod.name)
                self.restarted.add(pod.name)
                self.tally["containers killed"] += 1

    # -- what must hold

    def settle(self) -> None:
        """Wait until the node is settled, and check that each pod has its phone, and no other's."""
        until(self._settled, "the node is settled", seconds=_SETTLE)
        self.renewed.clear()
        held = self._held()
        names = sorted(held)
        for name, neighbour in zip(names, [*names[1:], names[0]], strict=True):
            closed = phones.others_closed(held[name], held[neighbour])
            copies = {f"unlink {each.split()[1]}": "ok" for each in closed if each.startswith("mknod")}
            own = {f"open /dev/{each}": "ok" for each in NAMES} | {f"manage /dev/{each}": "EBUSY" for each in NAMES}
            self._tries(name, own | closed | copies)

    def _settled(self) -> bool:
        known = self.node.kubelet.pods()
        for pod in list(self.pods):
            status = known[pod.name]["status"]
            if status["phase"] == "Failed":
                assert (pod.name, status["reason"]) in {(name, "UnexpectedAdmissionError") for name in self.restarted}
                self.replace(pod)
                self.tally["pods that a kubelet has rejected after its start"] += 1
        containers = {pod.name: _container(known[pod.name]) for pod in self.pods}
        containers["plugin"] = self.world.plugin.container_id()
        same = {name for name in containers if containers[name] == self.containers.get(name, containers[name])}
        if lost := self.containers.keys() - same - self.renewed:
            pytest.fail(f"restarted without an event: {lost}")
        if same & self.renewed:
            raise LookupError(f"not restarted yet: {same & self.renewed}")
        self._agree({known[pod.name]["metadata"]["uid"]: pod.name for pod in self.pods}, containers)
        self.containers = containers
        return True

    def _held(self) -> dict[str, str]:
        """Return the phone of each pod according to the kubelet."""
        held = {name: "".join(each) for (name, _), each in self.node.kubelet.held(RESOURCE).items()}
        if twice := [phone for phone, count in Counter(held.values()).items() if count > 1]:
            pytest.fail(f"given twice: {twice} in {held}")
        return held

    def _agree(self, uids: dict[str, str], containers: dict[str, str]) -> None:
        """Check that all agree: podresources, checkpoint, status, mounts, links, and the devices in the containers."""
        held, wanted = self._held(), set(phones.phones(self.count))
        assert held.keys() == set(uids.values()), f"{held}"
        devices = {name: _devices(f"/proc/{process(containers[name])}/root/dev") for name in held}
        if len({number for each in devices.values() for number in each}) < len(NAMES) * len(devices):
            pytest.fail(f"the same device in two pods: {devices}")
        assert devices == {name: _devices(path(phone)) for name, phone in held.items()}
        for entry in checkpoint()["PodDeviceEntries"]:
            if name := uids.get(entry["PodUID"]):
                assert entry["DeviceIDs"] == {"-1": [held[name]]}, f"{entry}: {held[name]}"
        assert self.node.kubelet.allocatable(RESOURCE) == wanted
        phones.require_whole(wanted | set(held.values()))
        mounted = phones.mounted()
        assert linked() == numbers(mounted)
        (resource,) = self.status()["resources"]
        owners = {each["id"]: [pod["name"] for pod in each["pods"]] for each in resource["devices"] if each["pods"]}
        assert owners == {phone: [f"{name}-e2e"] for name, phone in held.items()}, f"{owners}: {held}"
        assert (resource["registered"], resource["counts"]["healthy"]) == (True, self.count), f"{resource['counts']}"
        assert minors() == _MINORS * len(mounted), f"{minors()} minor numbers of {len(mounted)} phones"

    def _tries(self, name: str, expected: dict[str, str]) -> None:
        pid = process(self.containers[name])
        directory = Path(f"/proc/{pid}/root/tmp")
        until((directory / "up").exists, f"{name} manages its phone")
        (directory / "results").unlink(missing_ok=True)
        (directory / "tries").write_text(" ".join(words(expected)))
        os.kill(pid, signal.SIGUSR1)
        until((directory / "results").exists, f"{name} has tried")
        compare(expected, (directory / "results").read_text())

    def status(self) -> dict[str, Any]:
        """Return the plugin's status."""
        enter = ("nsenter", "--net", f"--target={process(self.world.plugin.container_id())}")
        status: dict[str, Any] = json.loads(run(*enter, "busybox", "wget", "-qO-", "http://127.0.0.1:9478/status"))
        return status

    def figures(self) -> dict[str, int]:
        """Return what may not grow."""
        plugin, kubelet = process(self.containers["plugin"]), self.node.kubelet.daemon.pid
        return {
            "plugin: resident KiB": int(process_status(plugin)["VmRSS"].split()[0]),
            "plugin: threads": int(process_status(plugin)["Threads"]),
            "plugin: descriptors": len(os.listdir(f"/proc/{plugin}/fd")),
            "plugin: mounts": _lines(f"/proc/{plugin}/mountinfo"),
            "kubelet: resident KiB": int(process_status(kubelet)["VmRSS"].split()[0]),
            "kubelet: descriptors": len(os.listdir(f"/proc/{kubelet}/fd")),
            "host: mounts": _lines("/proc/self/mountinfo"),
            "host: binder minor numbers": minors(),
            "host: cgroups": sum(len(names) for _, names, _ in os.walk(CGROUPS)),
            "host: links in /dev/char": len(list(LINKS.iterdir())),
            "host: files of the plugin": sum(
                len(names) + len(files)
                for top in (PLUGINS, "/run/aosp-binderfs", "/run/cdi")
                for directory, names, files in os.walk(top)
                if os.path.dirname(directory) != phones.DIRECTORY
            ),
        }

    def lives(self) -> dict[str, str]:
        """Return what processes have in common with none of their predecessors; a reload is one's end, too."""
        plugin = f"{self.containers['plugin']} {self.tally['count changes']}"
        return {"plugin": plugin, "kubelet": str(self.node.kubelet.daemon.pid)}

    # -- events

    def crashes(self) -> None:
        """Containers crash."""
        self.crash(4)

    def pods_return(self) -> None:
        """Pods are deleted, and others come."""
        for pod in self.random.sample(self.pods, 2):
            self.replace(pod)

    def disk_pressure(self) -> None:
        """The kubelet's disk is short: it finds no pod that it may evict, and one ends by its deadline in that time."""
        pod = self.replace(self.random.choice(self.pods), activeDeadlineSeconds=20)
        with self._filled(0.9, "unable to evict any pods from the node"):
            until(lambda: pod.status["phase"] == "Failed", f"{pod.name} has ended")
        assert pod.status["reason"] == "DeadlineExceeded", f"{pod.status}"
        self.replace(pod)

    def disk_full(self) -> None:
        """The kubelet's disk is full when containers and the plugin crash."""
        self.crash(2)
        self.kill("plugin")
        with self._filled(1, "no space left on device"):
            pass

    @contextlib.contextmanager
    def _filled(self, part: float, message: str) -> Iterator[None]:
        """Fill a part of the kubelet's disk while the context lasts, and until the kubelet logs a message."""
        log = self.node.kubelet.daemon.log
        before = log.stat().st_size
        usage = shutil.disk_usage(KUBELET)
        with (KUBELET / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, int(usage.total * part - usage.used))
        try:
            until(lambda: message.encode() in log.read_bytes()[before:], f"the kubelet logs {message}")
            yield
        finally:
            (KUBELET / "filler").unlink()

    def kubelet_restarts(self) -> None:
        """The kubelet restarts."""
        self.node.kubelet.restart()

    def containerd_restarts(self) -> None:
        """The container runtime restarts."""
        self.runtime.restart()

    def plugin_updated(self) -> None:
        """The next pod of the plugin is ready before this one ends."""
        self.world.plugin.update()
        self.renewed.add("plugin")

    def plugin_replaced(self) -> None:
        """The plugin's pod ends before the next one starts."""
        self.world.plugin.stop()
        self.world.plugin.start()
        self.renewed.add("plugin")

    def plugin_killed(self) -> None:
        """The plugin is killed."""
        self.kill("plugin")

    def count_changes(self) -> None:
        """The number of phones is another one, and then the first one again."""
        self.count = self.random.randrange(COUNT - 40, COUNT + 20) if self.count == COUNT else COUNT
        text = (PROJECT / "deploy/privileged/config.yaml").read_text()
        self.world.plugin.configure(text.replace("count: 120", f"count: {self.count}"))
        self.runtime.execute(self.containers["plugin"], "aosp-plugin", "reload")

    def daemon_reload(self) -> None:
        """Systemd applies its units to all cgroups."""
        run("systemctl", "daemon-reload")

    def properties_set(self) -> None:
        """Systemd and the CRI change properties of containers."""
        one, other = self.random.sample(sorted(self.containers.keys() - {"plugin"} - self.renewed), 2)
        run("systemctl", "set-property", "--runtime", f"cri-containerd-{self.containers[one]}.scope", "CPUWeight=50")
        self.runtime.set_cpu_shares(self.containers[other])


EVENTS: Final[tuple[Callable[[Night], None], ...]] = (
    Night.crashes,
    Night.pods_return,
    Night.disk_pressure,
    Night.disk_full,
    Night.kubelet_restarts,
    Night.containerd_restarts,
    Night.plugin_updated,
    Night.plugin_replaced,
    Night.plugin_killed,
    Night.count_changes,
    Night.daemon_reload,
    Night.properties_set,
    Night.count_changes,
)
"""Those of a round, after which the number of phones is the first one."""


def process(container: str) -> int:
    """Return the ID of a container's first process."""
    return int((_TASKS / container / "init.pid").read_text())


def minors() -> int:
    """Return how many minor numbers binder devices have: as many as are below those of new devices."""
    directory = WORK / "minors"
    directory.mkdir(exist_ok=True)
    binderfs_mounts.mount(str(directory))
    try:
        numbers = [os.minor(binderfs.add_device(str(directory), f"{number}")) for number in range(_FREE)]
        return max(numbers) - _FREE
    finally:
        binderfs.unmount(str(directory))


def _container(pod: dict[str, Any]) -> str:
    (status,) = pod["status"]["containerStatuses"]
    assert "running" in status["state"], f"{pod['metadata']['name']}: {status['state']}"
    return without_scheme(status["containerID"])


def _devices(directory: str) -> list[tuple[int, int]]:
    """Return file system and number of the devices of a phone."""
    found = [os.stat(f"{directory}/{name}") for name in NAMES]
    return [(status.st_dev, status.st_rdev) for status in found]


def _lines(file: str) -> int:
    return len(Path(file).read_text().splitlines())
