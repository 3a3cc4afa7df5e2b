"""Device sets: grouping by number and by name, patterns, and replicas."""

from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.devices.sets import (
    DeviceSet,
    Layout,
    Named,
    Numbered,
    Single,
    natural_key,
    pattern_problem,
    replica_ids,
    replicated_id,
)

TRIPLE = ("binder", "hwbinder", "vndbinder")


def sets_of(layout: Layout, names: list[str]) -> list[DeviceSet]:
    """Return the sets that contain these binder devices."""
    return [layout.set_of(set_id) for set_id in layout.ids(names)]


def test_prefix_selects_the_files_of_single_and_numbered_layouts() -> None:
    """It is literal text: it may have special characters of regular expressions, and end with a digit."""
    for layout in (Single("b"), Numbered("b", 3)):
        assert [layout.set_id_in(name) for name in ("b7", "b", "a7")] == ["b7", "b", None]
    assert Numbered("a.b", 1).ids(["a.b7", "axb8"]) == ["a.b7"]
    assert Numbered("b1", 2).ids(["b10", "b12", "b112", "b2"]) == ["b10", "b12", "b112"]


def test_numbered_sets_depend_on_numbers_and_not_on_positions() -> None:
    """Missing members are included, also the first one, whose name is the ID."""
    for layout, known, sets in (
        (Numbered("b", 3), [0, 1, 2, 9], {"b0": [0, 1, 2], "b9": [9, 10, 11]}),
        (Numbered("b", 3, first=2), [1, 5, 4], {"b2": [2, 3, 4], "b5": [5, 6, 7]}),
        (Numbered("b", 3, 120), [7, 300], {"b7": [7, 127, 247], "b60": [60, 180, 300]}),
        (Numbered("b", 2, 5, 10), [9, 10, 19, 20], {"b10": [10, 15], "b14": [14, 19]}),
    ):
        expected = [DeviceSet(id_, tuple(f"b{number}" for number in numbers)) for id_, numbers in sets.items()]
        assert sets_of(layout, [f"b{number}" for number in known]) == expected


def test_numbered_sets_use_canonical_numbers_only() -> None:
    """With a second spelling of a number, two binder devices would be the same member."""
    assert Numbered("b", 3).ids(["b", "b07", "b00", "b-1", "b1x", "xb1", "b²", "b٣", "b1\n", "B1", ""]) == []


@given(
    st.lists(st.integers(0, 40), unique=True),
    st.integers(1, 4),
    st.none() | st.integers(1, 7),
    st.integers(0, 5),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_numbered_sets_are_disjoint_and_have_a_known_member(
    numbers: list[int], size: int, stride: int | None, first: int
) -> None:
    """They cover every number from ``first`` on, up to the end of the stride."""
    known = [f"b{number}" for number in numbers]
    sets = sets_of(Numbered("b", size, stride, first), known)
    members = [name for group in sets for name in group.members]
    assert len(members) == len(set(members)) == size * len(sets)
    assert all(set(group.members) & set(known) for group in sets)
    assert [group.id for group in sets] == sorted((group.id for group in sets), key=natural_key)
    end = 1000 if stride is None else first + size * stride
    assert set(members) & set(known) == {f"b{number}" for number in numbers if first <= number < end}


def test_named_sets_have_their_members_in_the_order_of_the_names() -> None:
    """Missing members are included. An ID may contain braces and names, but must be valid."""
    names = ["{set}/hwbinder", "phone10/hwbinder", "phone9/binder", "binder/vndbinder", "a,b/binder", "../binder"]
    assert sets_of(Named(TRIPLE), names) == [
        DeviceSet(id_, (f"{id_}/binder", f"{id_}/hwbinder", f"{id_}/vndbinder"))
        for id_ in ("binder", "phone9", "phone10", "{set}")
    ]


def test_each_member_leads_to_its_named_set() -> None:
    for pattern, members in (
        ("{name}{set}", ("binder7", "hwbinder7", "vndbinder7")),
        ("{set}.d/dev-{name}0", ("7.d/dev-binder0", "7.d/dev-hwbinder0", "7.d/dev-vndbinder0")),
    ):
        assert pattern_problem(pattern, TRIPLE) is None
        for name in members:
            assert sets_of(Named(TRIPLE, pattern), [name]) == [DeviceSet("7", members)]
    for pattern, names in (
        ("{set}/{name}", ["binder", "phone7", "/binder", "a/b/binder", "phone7/binder7", "phone7/xbinder"]),
        ("{name}{set}", ["binder", "hwbinder", "xbinder7", "phone7/binder", "binder7/8"]),
        ("phone-{set}-{name}", ["phone--binder", "phone-7-xbinder", "xphone-7-binder"]),
    ):
        assert Named(TRIPLE, pattern).ids(names) == []


def test_pattern_selects_the_entries_of_the_device_directory() -> None:
    nested = Named(TRIPLE, "phone-{set}/dev-{name}")
    assert [nested.set_id_in(entry) for entry in ("phone-7", "phone-", "phone-7/x", "null")] == ["7", None, None, None]
    assert nested.files == ["dev-binder", "dev-hwbinder", "dev-vndbinder"]
    flat = Named(TRIPLE, "{name}{set}")
    assert not flat.files
    assert [flat.set_id_in(entry) for entry in ("binder7", "vndbinder8", "binder", "null")] == ["7", "8", None, None]


def test_pattern_problem_describes_invalid_patterns() -> None:
    for pattern, names, problem in (
        ("{set}/binder", TRIPLE, "must contain {set} and {name} once each"),
        ("{set}{/{name}", TRIPLE, "no other braces"),
        ("{name}/{set}", TRIPLE, "a / in the pattern must separate"),
        ("{set}/{name}", ("binder", ""), "invalid device name '': the name is empty"),
        ("{set},/{name}", TRIPLE, "invalid device name '0,': the name contains a comma"),
        ("{set}/binder-{name}", ("control",), "invalid device name 'binder-control': it is the control file"),
        ("{name}{set}", ("binder", "binder2"), "ambiguous for the names 'binder' and 'binder2'"),
        ("{name}-{set}", ("a", "a-b"), "ambiguous for the names 'a' and 'a-b'"),
    ):
        assert problem in (pattern_problem(pattern, names) or "")


PARTS = st.text(alphabet="ab-", max_size=2)


@given(
    st.permutations(["{set}", "{name}"]),
    st.tuples(PARTS, PARTS, PARTS),
    st.lists(st.text(alphabet="ab-", min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.text(alphabet="ab-", min_size=1, max_size=7), max_size=20),
)
@settings(derandomize=True, deadline=None, max_examples=80)
def test_valid_pattern_puts_no_file_into_two_sets(
    placeholders: list[str], parts: tuple[str, str, str], names: list[str], files: list[str]
) -> None:
    pattern = parts[0] + placeholders[0] + parts[1] + placeholders[1] + parts[2]
    if pattern_problem(pattern, names) is None:
        members = [name for group in sets_of(Named(names, pattern), files) for name in group.members]
        assert len(members) == len(set(members))


def test_numa_node_depends_on_all_members_of_a_numbered_set_and_on_the_id_of_a_named_set() -> None:
    """A number in {name} is not one of the phone."""
    assert sets_of(Single(""), ["b7"])[0].numa_names == ("b7",)
    assert sets_of(Numbered("b", 3, 120), ["b121"])[0].numa_names == ("b1", "b121", "b241")
    assert sets_of(Named(["binder1", "binder2"]), ["phone7/binder2"])[0].numa_names == ("phone7",)
    assert sets_of(Named(["binder"], "{name}{set}"), ["binder7"])[0].numa_names == ("7",)


def test_replicated_id_inverts_replica_ids() -> None:
    """The ID of a device may itself have the form of a replica's. IDs of more replicas have none."""
    assert replica_ids("b7", 1) == ["b7"]
    assert replicated_id("b7::3", 1) == "b7::3"
    for device_id in ("b7", "phone-7", "a::1", "::", ":"):
        assert replica_ids(device_id, 11)[::10] == [f"{device_id}::0", f"{device_id}::10"]
        assert {replicated_id(id_, 11) for id_ in replica_ids(device_id, 11)} == {device_id}
    for replica_id in ("b7", "b7::2", "b7::01", "b7::", "b7::x", "::0", "b7:1", ""):
        assert replicated_id(replica_id, 2) is None
