"""Nodes that are made anew before a container starts, as the backend and the kubelet see it.

What replaces a node is a stand-in here: plain files are no binderfs. The real thing is tried in ``tests/e2e/kernel``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.backend import BinderBackend, Settings
from aosp_plugin.binder.discovery import scanner
from aosp_plugin.binder.discovery.binder_device import Kind
from aosp_plugin.binder.discovery.health import Verify
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import provisioner, recreate
from aosp_plugin.errors import DevicesExhaustedError, HostError, UnhealthyDeviceError
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.device_list import DeviceList
from aosp_plugin.testing import AdmissionError, Container, Kubelet, Pod
from tests.support import IN_LIFE, RESOURCE, Nodes, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aosp_plugin.binder.discovery.binder_device import BinderDevice


class Renewals:
    """Stands in for what replaces a node, and for the binderfs that nodes are in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.renewed: list[str] = []
        self.modes: set[int | None] = set()
        self.swept: list[str] = []
        self.failure: HostError | None = None
        self.left = 0
        monkeypatch.setattr(recreate, "recreate_device", self._renew)
        monkeypatch.setattr(recreate, "sweep", self._sweep)
        monkeypatch.setattr(scanner, "kind_of", lambda *_: Kind.BINDERFS)

    def _renew(self, node: BinderDevice, _host: Host, mode: int | None = None) -> None:
        if self.failure is not None:
            raise self.failure
        self.renewed.append(node.name)
        self.modes.add(mode)

    def _sweep(self, directory: str, _host: Host) -> int:
        self.swept.append(directory)
        if self.failure is not None:
            raise self.failure
        return self.left


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    return Renewals(monkeypatch)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    made = Nodes(tmp_path / "dev")
    (made.directory / "binder-control").touch()
    made.make(0, 1)
    return made


@pytest.fixture
def make(nodes: Nodes) -> Callable[..., BinderBackend]:
    """Return what makes a backend that renews, and has looked once."""

    def made(ways: frozenset[DeviceList] = frozenset({DeviceList.VOLUME_MOUNTS})) -> BinderBackend:
        backend = BinderBackend(
            Host(),
            Settings(
                resource_name=RESOURCE,
                directory=str(nodes.directory),
                prefix="aosp_binder",
                verify=Verify.FILE,
                renew=True,
                ways=ways,
                cdi_directory=str(nodes.directory.parent / "cdi"),
            ),
        )
        backend.scan()
        return backend

    return made


def reasons(backend: BinderBackend) -> dict[str, str]:
    backend.scan()
    return {device.id: device.reason for device in backend.devices()}


def test_the_nodes_of_the_container_are_renewed_and_no_others(
    renewals: Renewals, make: Callable[..., BinderBackend]
) -> None:
    """As root's, with mode 0666; asked again for the same container, it is done again."""
    backend = make()
    for _ in range(2):
        backend.pre_start(["aosp_binder1"])
    assert renewals.renewed == ["aosp_binder1", "aosp_binder1"]
    assert renewals.modes == {0o666}
    assert reasons(backend) == {"aosp_binder0": "", "aosp_binder1": ""}


def test_a_node_that_can_not_be_renewed_is_unhealthy_until_it_is(
    renewals: Renewals, make: Callable[..., BinderBackend]
) -> None:
    """Each look tries again; the error has the node's name and what to do."""
    backend = make()
    renewals.failure = DevicesExhaustedError("cannot recreate /dev/aosp_binder1: max= is reached")
    with pytest.raises(UnhealthyDeviceError, match="'aosp_binder1' can't be given to a container: cannot recreate"):
        backend.pre_start(["aosp_binder1"])
    assert reasons(backend) == {"aosp_binder0": "", "aosp_binder1": "not-recreated"}
    renewals.failure = None
    backend.scan(frozenset())  # a look for which no event has come
    assert {device.id: device.reason for device in backend.devices()} == {"aosp_binder0": "", "aosp_binder1": ""}
    assert renewals.renewed == ["aosp_binder1"]


async def test_the_kubelet_is_told_at_once_of_a_node_that_can_not_be_renewed(
    renewals: Renewals, make: Callable[..., BinderBackend], kubelet_dir: str
) -> None:
    """No file event tells of it; and the pod's container does not start."""
    plugin = DevicePlugin(make(), kubelet_dir=kubelet_dir, timings=IN_LIFE)
    async with Kubelet(kubelet_dir) as kubelet, run(plugin):
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 2)
        pod = Pod("phone", [Container("main", {RESOURCE: 1})])
        await kubelet.admit(pod)
        renewals.failure = DevicesExhaustedError("cannot recreate /dev/aosp_binder0: max= is reached")
        with pytest.raises(AdmissionError, match="max= is reached"):
            await kubelet.start_container(pod, "main")
        await kubelet.wait_for(lambda k: k.resource(RESOURCE).allocatable == 1)


def test_what_a_killed_predecessor_left_is_removed_once(
    renewals: Renewals, make: Callable[..., BinderBackend], nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    """From each binderfs that has nodes of the resource."""
    caplog.set_level(logging.INFO)
    renewals.left = 2
    backend = make()
    backend.scan()
    assert renewals.swept == [str(nodes.directory)]
    assert "removed temporary nodes of a predecessor" in caplog.text


def test_temporary_nodes_that_can_not_be_removed_are_told(
    renewals: Renewals, make: Callable[..., BinderBackend], caplog: pytest.LogCaptureFixture
) -> None:
    """They do no harm but take room."""
    renewals.failure = HostError("not today")
    make()
    assert "temporary nodes can't be removed" in caplog.text


def test_a_renewed_node_has_its_cdi_spec_written_again(
    renewals: Renewals, make: Callable[..., BinderBackend], nodes: Nodes
) -> None:
    """A runtime keeps the number that it saw first until the file changes."""
    backend = make(frozenset({DeviceList.CDI_CRI}))
    file = nodes.directory.parent / "cdi/aosp.io_binder.json"
    before = file.stat().st_ino
    backend.pre_start(["aosp_binder0"])
    assert file.stat().st_ino != before


def test_nodes_that_can_not_be_kept_are_told_once_and_the_others_are_served(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    """On a host without binderfs, say: what is there is handed out."""
    caplog.set_level(logging.INFO)
    spec = provisioner.ProvisionSpec(str(nodes.directory), "aosp_binder", 0, 3)
    backend = BinderBackend(
        Host(),
        Settings(
            resource_name=RESOURCE,
            directory=str(nodes.directory),
            prefix="aosp_binder",
            verify=Verify.FILE,
            keep=spec,
        ),
    )
    for _ in range(3):
        assert reasons(backend) == {"aosp_binder0": "", "aosp_binder1": ""}
    assert caplog.text.count("nodes can't be made") == 1


def test_nodes_that_were_made_are_told(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are there for the look that follows."""
    caplog.set_level(logging.INFO)

    def provision(_provisioner: provisioner.DeviceProvisioner) -> int:
        nodes.make(7)
        return 1

    monkeypatch.setattr(provisioner.DeviceProvisioner, "provision", provision)
    spec = provisioner.ProvisionSpec(str(nodes.directory), "aosp_binder", 0, 8)
    backend = BinderBackend(
        Host(),
        Settings(
            resource_name=RESOURCE,
            directory=str(nodes.directory),
            prefix="aosp_binder",
            verify=Verify.FILE,
            keep=spec,
        ),
    )
    assert list(reasons(backend)) == ["aosp_binder0", "aosp_binder1", "aosp_binder7"]
    assert "made nodes" in caplog.text
