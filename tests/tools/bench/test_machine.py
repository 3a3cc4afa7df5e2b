"""The load of the machine during a benchmark."""

from __future__ import annotations

import subprocess
import sys

from tests.bench import machine
from tests.bench.machine import Load


def busy(seconds: float) -> None:
    """Use a processor in a child process."""
    code = f"import time\nwhile time.process_time() < {seconds}: pass"
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own


def test_the_benchmarks_own_processes_are_not_others() -> None:
    before = machine._own_seconds()
    busy(0.3)
    assert machine._own_seconds() - before >= 0.3


def test_a_repetition_has_its_loads_and_duration() -> None:
    with machine.load(wait=0.01) as measured:
        busy(0.05)
    assert measured.seconds >= 0.05
    assert len(measured.start) == len(measured.end) == 3
    assert measured.others >= 0


def test_an_idle_machine_causes_no_warning() -> None:
    assert machine.warnings([Load((0.4, 3.0, 3.0), others_before=0.05, others=0.09)]) == []


def test_the_load_average_counts_before_the_first_repetition_only() -> None:
    loads = [Load((0.8, 0.1, 0.1)), Load((1.5, 0.1, 0.1))]
    assert machine.warnings(loads) == ["the load average was 0.80 before the first repetition"]


def test_other_processes_cause_a_warning_for_each_repetition() -> None:
    loads = [Load((0.1, 0.1, 0.1), others_before=0.2), Load((0.1, 0.1, 0.1), others=0.5)]
    assert machine.warnings(loads) == [
        "repetition 1: other processes used 20% of one processor",
        "repetition 2: other processes used 50% of one processor",
    ]
