"""What an API server answers to a driver that publishes slices, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.api_contract.common import Checks
from tests.simulation import traces

if TYPE_CHECKING:
    from tests.api_contract.common import Server

check = Checks()


@check("Step by step, it answers what was recorded.")
async def trace(server: Server) -> None:
    async with server.client() as client:
        steps = await traces.api_steps(client)
    traces.show("apiserver", steps)
    different = traces.differences(steps, traces.recorded("apiserver"))
    assert not different, "; ".join(different)
