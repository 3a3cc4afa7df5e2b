"""The spread of a few devices of the host over the devices of a resource."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.backend.shared_paths import Spread, SpreadItem, _keyed, paired
from aosp_plugin.binder.devices.sets import Layout, Named, Numbered, PhoneLayout, Single
from aosp_plugin.config.keys import SpreadDevice

GPUS = ("/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/dri/renderD130")
HARDWARE = "/sys/devices/pci0000:00/0000:04:00.0"


def spread_of(*paths: str, numa_nodes: dict[str, int] | None = None) -> Spread:
    item = SpreadItem(SpreadDevice(path="/dev/gpu*"), dict.fromkeys(paths, ""), paths)
    return Spread((item,), numa_nodes=numa_nodes or {})


def test_devices_of_one_item_are_in_natural_order() -> None:
    """Whatever hardware they have, also several of the same one."""
    paths = {"/dev/dri/renderD1000": HARDWARE, "/dev/a/x": "", "/dev/dri/renderD999": HARDWARE}
    assert paired([paths]) == [("/dev/a/x", "/dev/dri/renderD999", "/dev/dri/renderD1000")]
    assert paired([]) == []


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["", "x", "y", "z", "w"]), max_size=4)))
def test_items_use_the_devices_of_hardware_that_all_items_connected_with_them_have(known: list[dict[str, str]]) -> None:
    """Written out for each item, which takes too long for as many items as a resource may have."""
    keyed = [dict(_keyed(paths)) for paths in known]
    hardware = [{value for value in paths.values() if value} for paths in known]
    for item, used in enumerate(paired(known)):
        connected = {item}
        for _ in known:
            shared = set[str]().union(*(hardware[each] for each in connected))
            connected |= {other for other, own in enumerate(hardware) if own & shared}
        order = keyed[min(connected)]
        assert used == tuple(keyed[item][key] for key in order if all(key in keyed[each] for each in connected))


def test_numa_node_is_that_of_the_spread_device() -> None:
    spread = spread_of(*GPUS, numa_nodes={GPUS[0]: 0, GPUS[2]: 1})
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
        (Numbered("n", 1, None, 1), "n1", 1),
        (Named(["binder", "hwbinder"]), "phone7/hwbinder", 7),
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
    spread = spread_of(*(f"/dev/gpu{number}" for number in range(count)))
    assert len(groups) == phones
    assert set(Counter(spread.of(group.number)[0].path for group in groups).values()) == {4}
