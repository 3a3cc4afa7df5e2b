"""The recorded trace, which the simulation replays on its kubelet, is what the kubelet does."""

import pytest

from tests.e2e.kubelet.managers import DeviceManager
from tests.e2e.kubelet.versions import LOSES_DEVICES
from tests.simulation import traces


@pytest.mark.requires(LOSES_DEVICES)
async def test_trace(kubelet: DeviceManager) -> None:
    steps = await traces.kubelet_steps(kubelet, traces.DirectoryEvents(kubelet.directory).seen, pause=2.0)
    traces.show("kubelet", steps)
    assert not traces.differences(steps, traces.recorded("kubelet"))
