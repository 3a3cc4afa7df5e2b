"""The wait for the end of a burst of events before a scan."""

from __future__ import annotations

from itertools import accumulate

from aosp_plugin.framework.refresher import CAP, LONGEST_CAP, LONGEST_QUIET, QUIET, pace


def test_first_event_of_a_burst_has_the_shortest_wait() -> None:
    assert pace(0) == (QUIET, CAP)


def test_waits_grow_up_to_a_limit_while_events_keep_coming() -> None:
    paces = [pace(scans) for scans in range(100)]
    assert paces == sorted(paces)
    assert {pace(scans) for scans in (50, 10_000)} == {(LONGEST_QUIET, LONGEST_CAP)}


def test_burst_of_many_seconds_causes_at_most_ten_scans() -> None:
    ends = list(accumulate(pace(scans)[1] for scans in range(10)))
    assert ends[-1] > 15
    assert ends[4] < 6
