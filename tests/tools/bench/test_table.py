"""The table of a benchmark's figures."""

from tests.bench import report
from tests.bench.contestants import EMPTY_HANDLERS, OURS

EMPTY = EMPTY_HANDLERS[0].name


def test_a_figure_is_the_median_of_the_repetitions_and_its_ratio_that_within_each() -> None:
    repetitions = [
        {"rss": {OURS: ours, EMPTY: empty, "peer": 10.0}} for ours, empty in ((60.0, 30.0), (80.0, 80.0), (90.0, 30.0))
    ]
    table = report.table([OURS, EMPTY, "peer"], 1_200, repetitions)
    assert (
        "| resident memory, everything on, MB | 1.3 x | 2 (1 to 3) | 80 (60 to 90) | 30 (30 to 80) | 10 (10 to 10) |"
        in table
    )


def test_a_plugin_without_a_figure_has_never_reached_it() -> None:
    table = report.table([OURS, "peer"], 10_000, [{"restart_replaced": {OURS: 12.0}}])
    assert "| the kubelet restarts: all devices are back, ms | 40 ms |  | 12 | never |" in table
