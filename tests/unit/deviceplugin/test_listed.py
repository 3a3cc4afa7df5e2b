"""The plainest backend, over a function that lists device nodes."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from aosp_plugin.errors import KubeletDirectoryError
from aosp_plugin.framework import listed
from aosp_plugin.framework.inventory import Device
from aosp_plugin.framework.listed import ListedDevices, device_id, serve_listed

if TYPE_CHECKING:
    from aosp_plugin.framework.backend import Backend


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/dev/fuse", "fuse"),
        ("/dev/dri/renderD128", "dri-renderD128"),
        ("/dev/bus/usb/001/002", "bus-usb-001-002"),
        ("/run/nodes/a", "run-nodes-a"),
    ],
)
def test_an_id_is_the_path_below_dev_with_dashes(path: str, name: str) -> None:
    """Elsewhere it is the whole path."""
    assert device_id(path) == name


def test_devices_are_those_of_the_last_listing() -> None:
    """Nothing is known before the first one, and what is no longer listed is gone."""
    paths = ["/dev/b", "/dev/a"]
    backend = ListedDevices(lambda: paths, ["/dev"])
    assert backend.devices() == []
    backend.refresh()
    assert backend.devices() == [Device("b"), Device("a")]
    del paths[0]
    assert backend.devices() == [Device("b"), Device("a")]
    backend.refresh()
    assert backend.devices() == [Device("a")]


def test_a_container_gets_each_node_at_its_own_path() -> None:
    """With the right to read and write, and in the order that was asked for."""
    backend = ListedDevices(lambda: ["/dev/dri/card0", "/dev/fuse"], [])
    backend.refresh()
    response = backend.allocate(["fuse", "dri-card0"])
    assert [(d.host_path, d.container_path, d.permissions) for d in response.devices] == [
        ("/dev/fuse", "/dev/fuse", "rw"),
        ("/dev/dri/card0", "/dev/dri/card0", "rw"),
    ]
    assert not response.mounts
    assert not response.envs


def test_it_is_a_whole_backend() -> None:
    """It prefers nothing and prepares nothing, and answers all the same if it is asked."""
    backend: Backend = ListedDevices(list, iter(["/dev", "/run", "/dev"]))
    assert (backend.get_preferred_allocation_available, backend.pre_start_required) == (False, False)
    assert backend.directories() == {"/dev", "/run"}
    assert list(backend.prefer(["a", "b", "c"], ["d"], 2)) == ["d", "a"]
    backend.pre_start(["a"])
    backend.close()


def test_an_error_of_the_listing_is_the_caller_s() -> None:
    """The devices stay as they were."""
    backend = ListedDevices(lambda: os.listdir("/dev/none"), [])
    with pytest.raises(FileNotFoundError):
        backend.refresh()
    assert backend.devices() == []


class Plugin:
    """Stands in for DevicePlugin, and sends this process a signal once it runs."""

    number = signal.SIGTERM
    made: tuple[Backend, dict[str, str]]

    def __init__(self, backend: Backend, **options: str) -> None:
        type(self).made = (backend, options)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Have ``run`` return."""
        self._stop.set()

    async def run(self) -> None:
        """Run until the signal has been taken."""
        os.kill(os.getpid(), self.number)
        await self._stop.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal_ends_it(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """The plugin is made of what the caller gave, and with the kubelet's own directory by default."""
    monkeypatch.setattr(listed, "DevicePlugin", Plugin)
    monkeypatch.setattr(Plugin, "number", number)
    serve_listed(lambda: ["/dev/fuse"], resource_name="a.io/b", socket_name="x")
    backend, options = Plugin.made
    backend.refresh()
    assert backend.devices() == [Device("fuse")]
    assert backend.directories() == {"/dev"}
    assert options == {
        "resource_name": "a.io/b",
        "socket_name": "x",
        "kubelet_dir": "/var/lib/kubelet/device-plugins",
    }


def test_what_keeps_it_from_serving_comes_out(kubelet_dir: str) -> None:
    """The real plugin ends where the kubelet's directory is not there."""
    with pytest.raises(KubeletDirectoryError, match=f"{kubelet_dir}/none does not exist"):
        serve_listed(list, resource_name="a.io/b", socket_name="x", kubelet_dir=f"{kubelet_dir}/none")
