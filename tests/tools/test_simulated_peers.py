"""The simulated API server and binderfs do what real ones did when a trace was recorded."""

from collections.abc import Callable

import pytest

from tests.simulation.comparison import simulated_api_steps, simulated_binderfs_steps
from tests.simulation.traces import Steps, differences, recorded


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("apiserver", simulated_api_steps),
        ("binderfs", simulated_binderfs_steps),
    ],
)
def test_steps_have_the_recorded_outcomes(name: str, steps: Callable[[], Steps]) -> None:
    assert differences(recorded(name), steps()) == []
