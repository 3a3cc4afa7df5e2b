"""The process may start no further thread, for example because of ``pids.max``, while the kubelet restarts."""

import threading

import pytest

from kubelet_standin import Kubelet
from tests.support import RESOURCE, DeviceDirectory, listed, running, sockets


async def test_plugin_that_may_start_no_thread_registers_again(
    device_directory: DeviceDirectory, kubelet_dir: str
) -> None:
    device_directory.add(1, 2)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with Kubelet(kubelet_dir) as kubelet, running(device_directory, kubelet_dir):
        await listed(kubelet, 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            await kubelet.restart()
            await listed(kubelet, 2)
        assert len(sockets(kubelet_dir)) == 1
        assert list(kubelet.resource(RESOURCE).devices) == ["aosp_binder1", "aosp_binder2"]
