"""The spread of a few devices of the host over the devices of a resource."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.backend.shared_paths import Spread, known
from aosp_plugin.binder.devices.sets import Layout, Named, Numbered, PhoneLayout, Single

GPUS = ("/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/dri/renderD130")


def test_restart_spreads_over_those_that_exist() -> None:
    """Those without wildcards always count, so that they select the same devices before and after they appear."""
    assert known((), GPUS[::2], ()) == GPUS[::2]
    assert known((), GPUS[:1], GPUS[1:2]) == GPUS[:2]


def test_order_is_natural_and_each_counts_once() -> None:
    paths = ["/dev/dri/renderD1000", "/dev/a/x", "/dev/dri/renderD999"]
    assert known(paths[:1], paths, paths[1:]) == ("/dev/a/x", "/dev/dri/renderD999", "/dev/dri/renderD1000")


def test_numa_node_is_that_of_the_spread_device() -> None:
    spread = Spread(GPUS, numa_nodes={GPUS[0]: 0, GPUS[2]: 1})
    assert [spread.numa_node(number) for number in range(4)] == [(0,), (), (1,), (0,)]
    assert Spread().numa_node(0) == ()


def test_number_of_a_device_is_the_last_one_in_its_id() -> None:
    """For sets of consecutive numbers, it is the position."""
    cases: list[tuple[Layout, str, int]] = [
        (Single("n"), "n2a07b", 7),
        (Single("n"), "n", 0),
        (Numbered("n", 3, 120, 1), "n121", 1),
        (Numbered("n", 3, 120, 1), "n120", 120),
        (Numbered("n", 3), "n7", 2),
        (Numbered("n", 3, None, 1), "n8", 2),
        (Named(["binder", "hwbinder"]), "phone7/hwbinder", 7),
        (Named(["b1", "b2"]), "phone/b2", 0),
        (PhoneLayout(), "phone12/vndbinder", 12),
    ]
    for layout, name, number in cases:
        (group,) = map(layout.set_of, layout.ids([name]))
        assert group.number == number


@given(st.integers(1, 8), st.integers(1, 9), st.integers(0, 7), st.booleans())
@settings(derandomize=True, deadline=None, max_examples=60)
def test_any_sets_are_spread_evenly(size: int, count: int, first: int, strided: bool) -> None:  # noqa: FBT001 - drawn
    """As many spread devices as a set has members must not give all sets the same one."""
    phones = 4 * count
    layout = Numbered("n", size, phones if strided else None, first)
    groups = [*map(layout.set_of, layout.ids([f"n{number}" for number in range(first, first + size * phones)]))]
    spread = Spread(tuple(f"/dev/gpu{number}" for number in range(count)))
    assert len(groups) == phones
    assert set(Counter(spread.device(group.number) for group in groups).values()) == {4}
