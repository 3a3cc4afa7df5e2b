"""The simulation of a binderfs is held to this kernel."""

import pytest

from aosp_plugin.binder.driver import binderfs, host
from tests.simulation import traces
from tests.simulation.comparison import binderfs_steps, simulated_binderfs_steps


@pytest.mark.core
def test_same_steps() -> None:
    """A simulated binderfs answers each call as that of this kernel."""
    steps = binderfs_steps("/run", binderfs, host)
    traces.show("binderfs", steps)
    different = traces.differences(steps, simulated_binderfs_steps())
    assert not different, "; ".join(different)
