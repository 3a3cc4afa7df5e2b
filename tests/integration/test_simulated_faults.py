"""The whole plugin on a simulated node: random faults of a few seeds, as ``make simulate`` runs them by the million."""

import pytest

from tests.simulation.scenario import run, steps_of

FAULTS = 120


@pytest.mark.parametrize("seed", range(3))
def test_the_plugin_recovers_from_all_faults(seed: int) -> None:
    result = run(seed, steps_of(seed, FAULTS))
    assert result.violations == []
    assert result.faults.total() == FAULTS
