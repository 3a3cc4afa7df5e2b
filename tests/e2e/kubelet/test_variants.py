"""Phones with a second resource, replicas or NUMA nodes."""

from typing import Final

import pytest

from tests.e2e.kubelet.node import Node, create_devices, names, natural_sort
from tests.e2e.kubelet.phones import CONFIGURATION, PATHS, PHONE, PHONES, SETS, binder_devices_of
from tests.e2e.kubelet.plugins import SHARING, sockets
from tests.e2e.kubelet.pods import container

SIDECAR: Final = "aosp.io/sidecar"
SIDECAR_PREFIX: Final = "sidecar_binder"
SIDECARS: Final = {f"{SIDECAR_PREFIX}{number}" for number in range(3)}
RESOURCES: Final = f"""\
version: v1
resources:
  - resource_name: {PHONE}
    {SETS.replace("container_paths", "    container_paths").rstrip()}
  - resource_name: {SIDECAR}
    device_prefix: {SIDECAR_PREFIX}
    visible_devices_env: SIDECARS
{SHARING}"""

TIMES: Final = 2
REPLICAS: Final = f"{CONFIGURATION}replicas: {TIMES}\n"
REPLICATED: Final = {f"{phone}::{number}" for phone in PHONES for number in range(TIMES)}

NUMA: Final = f"{CONFIGURATION}numa: {{'0-5': 0, '6-11': 1}}\n"
PLACES: Final = {phone: {int(phone in names(6, 9))} for phone in PHONES}


@pytest.fixture
def sidecars(node: Node) -> None:
    """Create the second resource's binder devices, and wait until they are allocatable."""
    create_devices(len(SIDECARS), SIDECAR_PREFIX)
    if not node.plugin.running():
        node.plugin.start()
    node.wait_allocatable(PHONES)
    node.wait_allocatable(SIDECARS, SIDECAR)


@pytest.mark.usefixtures("sidecars")
def test_registered(node: Node) -> None:
    """One process registers two resources, each with its own devices and its own socket."""
    assert len(sockets()) == 2
    assert (node.status(), node.status(SIDECAR)) == ((4, 4), (3, 3))


@pytest.mark.usefixtures("sidecars")
def test_merged(node: Node) -> None:
    """A container that requests both resources has the devices and the variable of each: the answers are merged."""
    requests = {"limits": {PHONE: 1, SIDECAR: 2}}
    with node.running(container("main", resources=requests)) as pod:
        view, members, sidecars = pod.view(), binder_devices_of(pod.held()), pod.held(resource=SIDECAR)
        assert (view.binder_devices, view.visible) == (set(members), members)
        assert len(sidecars) == 2
        assert view.named(SIDECAR_PREFIX) == sidecars
        assert view.environment["SIDECARS"].split(",") == sorted(sidecars)
        assert {*members, *sidecars} <= view.opened
        assert [view.bound.get(path) for path in PATHS] == members
        assert view.mounts["/vendor/shared"].split(",")[0] == "ro"


def test_both_open(node: Node) -> None:
    """A pod has each phone once, and a second pod shares one of them: both can open its binder devices."""
    with node.running_with(len(PHONES)) as first, node.running_with(1) as second:
        held, shared = ({device.split("::")[0] for device in pod.held()} for pod in (first, second))
        assert held == PHONES
        assert not first.held() & second.held()
        members = set(binder_devices_of(shared))
        assert members == second.view().binder_devices
        for pod in (first, second):
            assert members <= pod.view().opened


def test_topology(node: Node) -> None:
    """GetAllocatableResources reports the NUMA node of each phone."""
    node.wait_allocatable(PHONES)
    assert node.kubelet.numa_nodes(PHONE) == PLACES


def test_near_each_other(node: Node) -> None:
    """Two phones of one container are on the same NUMA node, although a lower number is free on the other."""
    with node.running_with(1) as first, node.running_with(2) as second:
        taken, allocated = natural_sort(first.held()), natural_sort(second.held())
        assert (taken, allocated) == (["aosp_binder0"], ["aosp_binder6", "aosp_binder9"])
