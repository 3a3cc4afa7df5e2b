"""The simulated binderfs does what a real one did when a trace was recorded."""

from tests.simulation.comparison import simulated_binderfs_steps
from tests.simulation.traces import differences, recorded


def test_steps_have_the_recorded_outcomes() -> None:
    assert differences(recorded("binderfs"), simulated_binderfs_steps()) == []
