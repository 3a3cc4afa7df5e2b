"""What an API server answers to a driver that publishes slices, step by step."""

from aosp_plugin.framework.apiserver.client import ApiClient
from tests.simulation import traces


async def test_trace(client: ApiClient) -> None:
    """Step by step, it answers what was recorded."""
    steps = await traces.api_steps(client)
    traces.show("apiserver", steps)
    different = traces.differences(steps, traces.recorded("apiserver"))
    assert not different, "; ".join(different)
