"""Reboots and restarts of a node, with each way to run the plugin.

They print the seconds until the phones run again, and the number of rejected pods. The node has systemd, and is a guest
in QEMU; see :mod:`tests.e2e.cluster.systemd_guest`.
"""

import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.cluster import binder, dra, outside, phones, plugin
from tests.e2e.cluster.binder import APP, COUNT
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.scenes import containers
from tests.e2e.cluster.systemd_guest import SystemdGuest
from tests.e2e.common.processes import EnteredDaemon
from tests.e2e.common.report import say
from tests.e2e.common.waiting import until
from tests.e2e.deploy.parts import PHONES, PROJECT, SYSTEMD, UNIT

_MANY: Final = 120
_LATER: Final = "later"
"""The name of a Deployment of one phone."""


@pytest.fixture(scope="module")
def machine(cluster: Cluster, binder_parts: None) -> Iterator[SystemdGuest]:
    """Return a node with systemd; it is removed at the end."""
    machine = binder.node(cluster, SystemdGuest)
    assert isinstance(machine, SystemdGuest)
    yield machine
    binder.remove_node(cluster)


def _rejected(cluster: Cluster, app: str) -> int:
    """Return how many pods of an app the kubelet has rejected, and delete them."""
    failed = [pod for pod in phones.of(cluster, app) if pod["status"]["phase"] == "Failed"]
    assert {pod["status"].get("reason") for pod in failed} <= {"UnexpectedAdmissionError"}, failed
    cluster.api.delete(phones.collection("Pod"), fieldSelector="status.phase=Failed")
    return len(failed)


def _reboots(
    cluster: Cluster, what: str, end: Callable[[], None], boot: Callable[[Path], None], count: int = COUNT
) -> int:
    """Reboot a node, wait until all phones run in new containers, and return how many pods were rejected."""
    before = containers(phones.wait_running(cluster, APP, count, seconds=SLOW))
    started = time.monotonic()
    end()
    ended = time.monotonic() - started
    boot(cluster.control_plane.programs)

    def again() -> bool:
        pods = [pod for pod in phones.running(cluster, APP) if pod["status"]["containerStatuses"][0]["ready"]]
        return len(pods) == count and not {*containers(pods).values()} & {*before.values()}

    until(again, "all phones run in new containers", seconds=2 * SLOW)
    seconds, rejected = time.monotonic() - started, _rejected(cluster, APP)
    say(f"# {what}: {seconds:.0f} s, {rejected} pods rejected; the host's end took {ended:.0f} s of it")
    same = containers(phones.running(cluster, APP)).keys() == before.keys()
    assert same == (not rejected), f"{rejected} rejected; the same pods: {same}"
    return rejected


def _restarts(cluster: Cluster, machine: SystemdGuest, column: str, unit: str, later: dict[str, Any]) -> None:
    """Restart a unit: phones run on, and a new one runs."""
    before = containers(phones.wait_running(cluster, APP, COUNT, seconds=SLOW))
    started = time.monotonic()
    machine.run("systemctl", "restart", unit, seconds=SLOW)
    phones.run(cluster, later, seconds=SLOW)
    seconds, rejected = time.monotonic() - started, _rejected(cluster, _LATER)
    say(f"# {column}, {unit} restart: phones run on; a new one after {seconds:.0f} s, {rejected} pods rejected")
    assert containers(phones.of(cluster, APP)) == before, f"before: {before}"
    phones.remove(cluster, "Deployment", _LATER, seconds=SLOW)


def _measure(
    cluster: Cluster, machine: SystemdGuest, column: str, controller: Callable[[str, int], dict[str, Any]]
) -> list[int]:
    """Fill a column of the table, and return how many pods each reboot rejected; ``controller`` makes Deployments."""
    rejected = []
    phones.create(cluster, controller(APP, COUNT))
    for how, end in (("power loss", machine.shut_down), ("clean reboot", machine.end_in_order)):
        rejected.append(_reboots(cluster, f"{column}, {how}", end, machine.boot))
        if machine.host_plugin:
            _check_order(machine)
    for unit in ("containerd", "kubelet"):
        _restarts(cluster, machine, column, unit, controller(_LATER, 1))
    phones.remove(cluster, "Deployment", APP, seconds=SLOW)
    return rejected


def _start_service(cluster: Cluster) -> EnteredDaemon:
    """Make devices and start the plugin on the first machine, and wait for it as deploy/systemd has the kubelet do."""
    config, machine = cluster.directory / "host-plugin.json", cluster.machine
    machine.create_devices(_MANY * plugin.SIZE)
    config.write_text(json.dumps(plugin.VALUES["config"]))
    command = [*machine.enter(), sys.executable, "-m", "aosp_plugin", "serve", f"--config={config}"]
    daemon = EnteredDaemon("plugin", command, cluster.directory / "plugin.log", {"PYTHONPATH": str(PROJECT)})
    daemon.start()
    (line,) = re.findall(r"(?m)^ExecStartPre=-(.*)$", (SYSTEMD / "kubelet.conf").read_text())
    machine.run(*shlex.split(line))
    return daemon


def test_many(cluster: Cluster) -> None:
    """120 phones without emulation, a kubelet that waits for the plugin: the same pods run after a power loss."""
    machine, started = cluster.machine, [_start_service(cluster)]

    def boot(programs: Path) -> None:
        machine.boot(programs, lambda: started.append(_start_service(cluster)))

    try:
        phones.create(cluster, phones.deployment(APP, _MANY))
        assert _reboots(cluster, f"{_MANY} phones, power loss", machine.shut_down, boot, _MANY) == 0
        assert len(outside.holders(machine)) == _MANY
        assert not outside.conflicts(machine), outside.conflicts(machine)
        phones.remove(cluster, "Deployment", APP)
    finally:
        started[-1].end()
    machine.device_tool("delete")
    machine.create_devices()


def _check_order(machine: SystemdGuest) -> None:
    """Check that phones were mounted before plugin and kubelet started, and that the kubelet waited for the plugin."""
    mounted, started = machine.moment(PHONES, "ActiveEnter"), machine.moment(UNIT, "InactiveExit")
    waits, kubelet = machine.moment("kubelet", "InactiveExit"), machine.moment("kubelet", "ActiveEnter")
    say(f"# phones mounted {mounted:.1f}, plugin {started:.1f}, kubelet waits {waits:.1f}, runs {kubelet:.1f} s")
    assert 0 < mounted <= min(started, waits), "the phones are late"
    assert started < kubelet, "the plugin is late"
    assert len(binder.mounted(machine)) == COUNT + 1, binder.mounted(machine)


def test_driver(cluster: Cluster, machine: SystemdGuest) -> None:
    """DRA: after a reboot the same pods run with fresh phones; a restart disturbs none."""
    binder.install(cluster, binder.values(api="dra", phones={"count": COUNT + 1}))
    dra.create(cluster, dra.template(dra.TEMPLATE, dra.request()))
    dra.wait_published(cluster, machine, COUNT + 1, seconds=SLOW)
    assert _measure(cluster, machine, "DRA", dra.deployment) == [0, 0]
    dra.remove(cluster)


def test_daemon_set(cluster: Cluster, machine: SystemdGuest) -> None:
    """The DaemonSet: a reboot rejects all phones; a restart disturbs none."""
    binder.install(cluster, binder.values(phones={"count": COUNT + 1}))
    assert min(_measure(cluster, machine, "DaemonSet", phones.deployment)) >= COUNT
    plugin.uninstall(cluster)


def test_units(cluster: Cluster, machine: SystemdGuest) -> None:
    """The units of deploy/systemd: phones are mounted before the kubelet starts, which waits for the plugin.

    How many pods are rejected is only printed: an emulated plugin may register too late.
    """
    machine.host_plugin = f"phones: {{count: {COUNT + 1}}}\nprovisioned_by: command\n"
    machine.end_in_order()
    machine.boot(cluster.control_plane.programs)
    _measure(cluster, machine, "units", phones.deployment)
