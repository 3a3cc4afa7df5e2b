"""The chaos suite and the simulation agree: on their faults, and on what must hold after them."""

from __future__ import annotations

import pytest

from tests.chaos import faults
from tests.chaos.counterparts import ONLY_HERE, ONLY_SIMULATED, SAME
from tests.chaos.registry import BOUND, FAULTS
from tests.simulation.faults import FAULTS as SIMULATED
from tests.simulation.scenario import Step, run
from tests.simulation.settings import TTL


def test_each_fault_has_a_counterpart_or_a_reason() -> None:
    assert faults.__all__
    here = " ".join([*SAME.values(), *ONLY_HERE.values()]).split()
    simulated = [*SAME, *" ".join(ONLY_SIMULATED.values()).split()]
    assert (sorted(here), sorted(simulated)) == (sorted(FAULTS), sorted(SIMULATED))


@pytest.mark.parametrize("name", SAME)
def test_the_simulated_node_recovers_as_the_real_process_has_to(name: str) -> None:
    """Within the same bound, from a second after the beginning of the fault, when it ends and the clock jumps.

    A replaced binderfs is to become healthy there, after its time; chaos ends before, and expects it to be unhealthy.
    """
    bound = BOUND + (TTL if name == "binderfs_is_mounted_again" else 0.0)
    for seed in range(3):
        fault = Step(0.0, name, BOUND, seed, is_last=False)
        result = run(seed, [fault, Step(1.0, "clock_jumps", 0.0, seed, is_last=True)])
        assert not result.violations
        assert result.recoveries["clock_jumps"] <= bound
