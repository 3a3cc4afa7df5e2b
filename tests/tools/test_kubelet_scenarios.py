"""The stand-in kubelet behaves as the real ones in the scenarios that ``make test-kubelet`` runs with both."""

from collections.abc import AsyncIterator

import pytest

from tests.e2e.kubelet import versions
from tests.e2e.kubelet.managers import DeviceManager, stand_in
from tests.e2e.kubelet.test_scenarios import *  # noqa: F403 - all of its tests
from tests.e2e.kubelet.test_scenarios_dra import *  # noqa: F403


@pytest.fixture(params=[32, 36, 37])
async def kubelet(request: pytest.FixtureRequest) -> AsyncIterator[DeviceManager]:
    """Return the stand-in for a minor version of the kubelet."""
    if missing := versions.missing(request.node, request.param):
        pytest.skip(missing)
    async with stand_in(request.param, "scenario.test/resource") as manager:
        yield manager
