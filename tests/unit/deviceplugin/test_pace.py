"""How long a burst of events is waited out before a look."""

from __future__ import annotations

from itertools import accumulate

from aosp_plugin.framework.refresher import CAP, LONGEST_CAP, LONGEST_QUIET, QUIET, pace


def test_the_first_event_after_a_calm_is_looked_at_soonest() -> None:
    """A node that appears alone is told within milliseconds."""
    assert pace(0) == (QUIET, CAP)


def test_looks_come_further_apart_while_events_keep_coming() -> None:
    """Each waits as long as the last one or longer, and never beyond the limits."""
    paces = [pace(row) for row in range(100)]
    assert paces == sorted(paces)
    assert {pace(row) for row in (50, 10_000)} == {(LONGEST_QUIET, LONGEST_CAP)}


def test_ten_messages_tell_a_burst_of_many_seconds() -> None:
    """Without a single pause, ten looks last for longer than ten thousand nodes take to make on a busy machine."""
    ends = list(accumulate(pace(row)[1] for row in range(10)))
    assert ends[-1] > 15
    assert ends[4] < 6
