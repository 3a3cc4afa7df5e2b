"""The stand-in kubelet behaves as the real ones in all scenarios that ``make test-kubelet`` runs with both."""

import pytest

from tests.e2e.kubelet.managers import stand_in
from tests.e2e.kubelet.scenarios import Scenario
from tests.e2e.kubelet.scenarios_dra import ALL

SCENARIOS = [each for each in ALL if each.name != "trace"]  # it lasts a minute
CASES = [(each, minor) for minor in (32, 36, 37) for each in SCENARIOS if not each.requires.missing(minor)]


@pytest.mark.parametrize(("scenario", "minor"), CASES, ids=lambda value: getattr(value, "name", str(value)))
async def test_the_stand_in_behaves_as_the_kubelet(scenario: Scenario, minor: int) -> None:
    async with stand_in(minor) as kubelet:
        await scenario.check(kubelet)
