"""The process may start no further thread, for example because of ``pids.max``, while the kubelet restarts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from kubelet_standin import Kubelet
from tests.support import RESOURCE, listed, problem, running, sockets

if TYPE_CHECKING:
    from tests.support import DeviceDirectory


@pytest.mark.parametrize("refused", ["", "_serve"], ids=["all", "those of gRPC's server"])
async def test_plugin_registers_again_when_it_may_start_threads_again(
    device_directory: DeviceDirectory, kubelet_dir: str, refused: str
) -> None:
    """The old server has stopped although gRPC has no thread to wait for its requests."""
    device_directory.add(1, 2)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if refused in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir) as plugin:
        await listed(kubelet, 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            await kubelet.restart()
            await problem(plugin, "can't start new thread")
        await listed(kubelet, 2)
        assert len(sockets(kubelet_dir)) == 1
        assert list(kubelet.resource(RESOURCE).devices) == ["aosp_binder1", "aosp_binder2"]
