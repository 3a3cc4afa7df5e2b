"""How nodes group into devices, and what a set is worth."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.binder.devices.sets import (
    DeviceSet,
    Layout,
    Named,
    Numbered,
    Single,
    pattern_problem,
    replica_ids,
    split_replica,
    worst,
)
from aosp_plugin.binder.discovery.health import Reason
from aosp_plugin.binder.discovery.names import natural_key

KBOX = [f"aosp_binder{number}" for number in range(400)]
TRIPLE = ("binder", "hwbinder", "vndbinder")


def ids(layout: Layout, *names: str) -> list[str]:
    """Return the IDs of the sets that these nodes make."""
    return [device.id for device in layout.sets(names)]


def told(layout: Layout, known: dict[str, Reason | None]) -> dict[str, tuple[Reason, str] | None]:
    """Return what each set is worth, given what is known of nodes."""
    return {
        device.id: worst([(node, known.get(node, Reason.MISSING)) for node in device.nodes])
        for device in layout.sets(known)
    }


def test_each_node_is_a_device_where_no_sets_are_wanted() -> None:
    """The ID is the node's name, and the order that of the names."""
    assert Single().sets(["a", "b9", "b10"]) == [
        DeviceSet("a", ("a",)),
        DeviceSet("b9", ("b9",)),
        DeviceSet("b10", ("b10",)),
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_400_nodes_120_apart_make_120_phones(first: int) -> None:
    """Kbox counts from 0 or from 1; the numbers beyond the third stride, and below the first, are in no phone."""
    sets = Numbered("aosp_binder", 3, 120, first).sets(KBOX)
    assert sets == [
        DeviceSet(f"aosp_binder{n}", (f"aosp_binder{n}", f"aosp_binder{n + 120}", f"aosp_binder{n + 240}"))
        for n in range(first, first + 120)
    ]
    assert {node for device in sets for node in device.nodes} == set(KBOX[first : first + 360])


@pytest.mark.parametrize("seen_before", [True, False], ids=["vanished", "never seen"])
@pytest.mark.parametrize(
    ("first", "node", "phone"),
    [
        (0, "aosp_binder121", "aosp_binder1"),
        (1, "aosp_binder121", "aosp_binder1"),
        (0, "aosp_binder120", "aosp_binder0"),
        (1, "aosp_binder120", "aosp_binder120"),
        (0, "aosp_binder359", "aosp_binder119"),
        (1, "aosp_binder359", "aosp_binder119"),
    ],
)
def test_a_missing_node_makes_its_own_phone_incomplete_and_no_other(
    first: int, node: str, phone: str, *, seen_before: bool
) -> None:
    """Pairs are made by number: nothing moves up into the place of the missing one, not even of a first node."""
    layout = Numbered("aosp_binder", 3, 120, first)
    known: dict[str, Reason | None] = dict.fromkeys(KBOX)
    before = told(layout, known)
    assert set(before.values()) == {None}
    if seen_before:
        known[node] = Reason.MISSING
    else:
        del known[node]
    after = told(layout, known)
    assert len(after) == len(before) == 120
    assert {device_id: after[device_id] for device_id in before if after[device_id] != before[device_id]} == {
        phone: (Reason.INCOMPLETE, f"{node} is missing")
    }


def test_without_a_stride_numbers_in_a_row_make_a_set() -> None:
    """From the first one on, and without an upper end; a set is known by any of its nodes."""
    assert Numbered("b", 3).sets(["b1", "b999999"]) == [
        DeviceSet("b0", ("b0", "b1", "b2")),
        DeviceSet("b999999", ("b999999", "b1000000", "b1000001")),
    ]
    assert Numbered("b", 3, first=2).sets(["b1", "b5", "b4"]) == [
        DeviceSet("b2", ("b2", "b3", "b4")),
        DeviceSet("b5", ("b5", "b6", "b7")),
    ]


def test_a_stride_gives_as_many_sets_and_no_more() -> None:
    """The last number is that of the last node of the last set."""
    layout = Numbered("b", 2, 5, 10)
    assert ids(layout, "b9", "b20") == []
    assert ids(layout, "b10", "b19") == ["b10", "b14"]


def test_a_stride_of_one_makes_one_set() -> None:
    """It is not the same as none, which goes on."""
    assert ids(Numbered("b", 2, 1), "b0", "b1", "b2", "b3") == ["b0"]
    assert ids(Numbered("b", 2), "b0", "b1", "b2", "b3") == ["b0", "b2"]


@given(
    st.lists(st.text(alphabet="ab019-", max_size=5), unique=True)
    | st.lists(st.from_regex(r"b[019]{0,4}", fullmatch=True), unique=True)
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_sets_come_in_natural_order(found: list[str]) -> None:
    """As their names do, whatever these are like, and also where they differ in a number alone."""
    found = sorted(found, key=natural_key)
    assert ids(Single(), *found) == found
    usable = [name for name in found if name]
    assert ids(Named(["x"]), *(f"{name}/x" for name in usable)) == sorted(usable, key=natural_key)


def test_a_set_none_of_whose_nodes_is_known_does_not_exist() -> None:
    """Nobody is told of phones that this host never had."""
    assert ids(Numbered("b", 3, 120), "b7", "b300") == ["b7", "b60"]
    assert ids(Numbered("b", 3)) == ids(Single()) == ids(Named(TRIPLE)) == []


@pytest.mark.parametrize("name", ["b", "b07", "b00", "b-1", "b1x", "xb1", "b1.5", "b²", "b٣", "b1\n", "B1", ""])
def test_only_canonical_numbers_behind_the_prefix_count(name: str) -> None:
    """Another way to write a number would be a second node in the place of the first."""
    assert ids(Numbered("b", 3, 120), name) == []
    assert ids(Numbered("b", 3), name) == []


def test_the_prefix_is_taken_letter_by_letter() -> None:
    """It may have characters that mean something in a regular expression, and end in a digit."""
    assert ids(Numbered("a.b", 1), "a.b7", "axb8") == ["a.b7"]
    assert ids(Numbered("b1", 2), "b10", "b12", "b112", "b2") == ["b10", "b12", "b112"]


@given(
    st.lists(st.integers(0, 40), unique=True),
    st.integers(1, 4),
    st.none() | st.integers(1, 7),
    st.integers(0, 5),
)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_no_node_is_in_two_sets_and_each_set_has_one_that_is_known(
    numbers: list[int], size: int, stride: int | None, first: int
) -> None:
    """Whatever numbers there are, in natural order, and every number that may be in a set is."""
    known = [f"b{number}" for number in numbers]
    sets = Numbered("b", size, stride, first).sets(known)
    nodes = [node for device in sets for node in device.nodes]
    assert len(nodes) == len(set(nodes)) == size * len(sets)
    assert all(set(device.nodes) & set(known) for device in sets)
    assert [device.id for device in sets] == sorted((device.id for device in sets), key=natural_key)
    end = 1000 if stride is None else first + size * stride
    assert set(nodes) & set(known) == {f"b{number}" for number in numbers if first <= number < end}


@given(st.sets(st.integers(0, 50)), st.sampled_from([(3, None), (3, 9), (2, 12)]))
@settings(derandomize=True, deadline=None)
def test_a_further_node_changes_no_other_set(numbers: set[int], shape: tuple[int, int | None]) -> None:
    """What a set is made of depends on its number alone."""
    layout = Numbered("b", *shape)
    few, all_of_them = layout.sets(f"b{n}" for n in numbers), layout.sets(f"b{n}" for n in range(51))
    assert set(few) <= set(all_of_them)


def test_a_named_set_has_a_directory_of_its_own() -> None:
    """Its nodes come in the order of the names, whichever of them are there."""
    assert Named(TRIPLE).sets(["phone10/hwbinder", "phone9/binder", "phone9/vndbinder"]) == [
        DeviceSet("phone9", ("phone9/binder", "phone9/hwbinder", "phone9/vndbinder")),
        DeviceSet("phone10", ("phone10/binder", "phone10/hwbinder", "phone10/vndbinder")),
    ]


@pytest.mark.parametrize(
    ("pattern", "nodes"),
    [
        ("{name}{set}", ("binder7", "hwbinder7", "vndbinder7")),
        ("phone-{set}-{name}", ("phone-7-binder", "phone-7-hwbinder", "phone-7-vndbinder")),
        ("{name}.{set}.x", ("binder.7.x", "hwbinder.7.x", "vndbinder.7.x")),
        ("phone-{set}/{name}", ("phone-7/binder", "phone-7/hwbinder", "phone-7/vndbinder")),
        ("{set}.d/dev-{name}0", ("7.d/dev-binder0", "7.d/dev-hwbinder0", "7.d/dev-vndbinder0")),
    ],
)
def test_a_pattern_makes_the_names_of_nodes(pattern: str, nodes: tuple[str, ...]) -> None:
    """Each of its nodes leads to the set."""
    layout = Named(TRIPLE, pattern)
    for node in nodes:
        assert layout.sets([node]) == [DeviceSet("7", nodes)]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("{set}/{name}", ["binder", "phone7", "/binder", "a/b/binder", "phone7/binder7", "phone7/xbinder"]),
        ("{name}{set}", ["binder", "hwbinder", "xbinder7", "phone7/binder", "binder7/8"]),
        ("phone-{set}-{name}", ["phone--binder", "phone-binder", "phone-7-xbinder", "xphone-7-binder"]),
    ],
)
def test_names_that_do_not_fit_the_pattern_are_in_no_set(pattern: str, names: list[str]) -> None:
    """What {set} stands for has one character at least, and no slash."""
    assert ids(Named(TRIPLE, pattern), *names) == []


def test_what_set_stands_for_may_have_anything_in_it_that_an_id_may() -> None:
    """Braces of a file name are not those of the pattern, nor is a part of a name."""
    names = ["{name}/binder", "{set}/binder", "binder/binder", "a.b-c/hwbinder"]
    assert ids(Named(TRIPLE), *names) == ["a.b-c", "binder", "{name}", "{set}"]
    assert Named(["{x}"], "{set}-{name}").sets(["7-{x}"]) == [DeviceSet("7", ("7-{x}",))]


@pytest.mark.parametrize("name", ["a b", "a,b", "x" * 64, "..", "."])
def test_a_named_set_that_can_not_be_an_id_is_left_out(name: str) -> None:
    """The scanner tells of it; here it must not become a device."""
    assert ids(Named(TRIPLE), f"{name}/binder", "ok/binder") == ["ok"]
    assert ids(Named(TRIPLE), "x" * 63 + "/binder") == ["x" * 63]


def test_a_layout_tells_what_a_directory_holds() -> None:
    """The scanner asks it which entries are worth a look, and for which files."""
    nested = Named(TRIPLE, "phone-{set}/dev-{name}")
    assert (nested.nested, nested.files) == (True, ("dev-binder", "dev-hwbinder", "dev-vndbinder"))
    assert [nested.set_at(entry) for entry in ("phone-7", "phone-", "phone-7/x", "null")] == ["7", None, None, None]
    flat = Named(TRIPLE, "{name}{set}")
    assert not flat.nested
    assert [flat.set_at(entry) for entry in ("binder7", "vndbinder8", "binder", "null")] == ["7", "8", None, None]


@pytest.mark.parametrize(
    "pattern",
    [
        "{set}/{name}",
        "{name}{set}",
        "phone-{set}-{name}",
        "{set}-{name}",
        "{set}.{name}.x",
        "a{set}b/c{name}d",
    ],
)
def test_a_good_pattern_has_no_problem(pattern: str) -> None:
    """Text may stand anywhere around the two."""
    assert pattern_problem(pattern, TRIPLE) is None


@pytest.mark.parametrize(
    ("pattern", "names", "why"),
    [
        ("", TRIPLE, "has to have {set} and {name}, each once"),
        ("{set}/binder", TRIPLE, "has to have {set} and {name}, each once"),
        ("{name}", TRIPLE, "has to have {set} and {name}, each once"),
        ("{set}-{x}", TRIPLE, "has to have {set} and {name}, each once"),
        ("{name}-{x}", TRIPLE, "has to have {set} and {name}, each once"),
        ("{set}-{set}", TRIPLE, "has to have {set} and {name}, each once"),
        ("{set}/{set}{name}", TRIPLE, "has to have {set} and {name}, each once"),
        ("{set}/{name}{name}", TRIPLE, "has to have {set} and {name}, each once"),
        ("{set}/{name}{x}", TRIPLE, "no other brace"),
        ("{{set}}/{name}", TRIPLE, "no other brace"),
        ("{set}/{name}}", TRIPLE, "no other brace"),
        ("{set}{/{name}", TRIPLE, "no other brace"),
        ("{name}/{set}", TRIPLE, "a / in the pattern stands between"),
        ("/{set}{name}", TRIPLE, "a / in the pattern stands between"),
        ("{set}{name}/", TRIPLE, "a / in the pattern stands between"),
        ("a/{set}-{name}", TRIPLE, "a / in the pattern stands between"),
        ("{set}/a/{name}", TRIPLE, "a / in the pattern stands between"),
        ("{set}//{name}", TRIPLE, "a / in the pattern stands between"),
        ("{set}/{name}", (), "one name at least"),
        ("{set}/{name}", ("binder", ""), "'' can't be a node: the name is empty"),
        ("{name}{set}", ("",), "'' can't be a node: the name is empty"),
        ("{set}/{name}", ("a/b",), "'a/b' can't be a node: it is a path"),
        ("{set}/{name}", ("..",), "'..' can't be a node: it is a path"),
        ("{set}/{name}", ("binder", "a b"), "'a b' can't be a node: the name contains a space"),
        ("{set},/{name}", TRIPLE, "'0,' can't be a node: the name contains a comma"),
        ("{set}/x {name}", TRIPLE, "'x binder' can't be a node: the name contains a space"),
        ("{set} {name}", TRIPLE, "'0 binder' can't be a node: the name contains a space"),
        ("{set}/{name}", ("binder-control",), "'binder-control' can't be a node: it makes nodes"),
        ("{set}/binder-{name}", ("control",), "'binder-control' can't be a node: it makes nodes"),
        ("{set}/{name}", ("a", "b", "a"), "can't tell the names 'a' and 'a' apart"),
        ("{set}{name}", TRIPLE, "can't tell the names 'binder' and 'hwbinder' apart"),
        ("{set}{name}", TRIPLE[::-1], "can't tell the names 'vndbinder' and 'binder' apart"),
        ("x{set}{name}.y", ("hwbinder", "binder"), "can't tell the names 'hwbinder' and 'binder' apart"),
        ("{name}{set}", ("binder", "binder2"), "can't tell the names 'binder' and 'binder2' apart"),
        ("{name}{set}", ("binder2", "binder"), "can't tell the names 'binder2' and 'binder' apart"),
        ("{name}-{set}", ("a", "a-b"), "can't tell the names 'a' and 'a-b' apart"),
    ],
)
def test_a_bad_pattern_is_told_with_what_is_wrong(pattern: str, names: tuple[str, ...], why: str) -> None:
    """The configuration refuses it with these words, and a layout is never made of it."""
    assert why in (pattern_problem(pattern, names) or "")
    with pytest.raises(ValueError, match=r"pattern|name|node"):
        Named(names, pattern)


PARTS = st.text(alphabet="ab-", max_size=2)


@given(
    st.permutations(["{set}", "{name}"]),
    st.tuples(PARTS, PARTS, PARTS),
    st.lists(st.text(alphabet="ab-", min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.text(alphabet="ab-", min_size=1, max_size=7), max_size=20),
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_no_file_belongs_to_two_named_sets(
    places: list[str], parts: tuple[str, str, str], names: list[str], files: list[str]
) -> None:
    """A pattern and names that are taken for good never give one node to two containers."""
    pattern = parts[0] + places[0] + parts[1] + places[1] + parts[2]
    if pattern_problem(pattern, names) is None:
        nodes = [node for device in Named(names, pattern).sets(files) for node in device.nodes]
        assert len(nodes) == len(set(nodes))


def test_what_tells_the_numa_node_is_in_all_nodes_of_a_numbered_set_and_in_the_id_of_a_named_one() -> None:
    """A number in {name} is none of the phone's."""
    assert Single().sets(["b7"])[0].numbered == ("b7",)
    assert Numbered("b", 3, 120).sets(["b121"])[0].numbered == ("b1", "b121", "b241")
    assert Named(["binder1", "binder2"]).sets(["phone7/binder2"])[0].numbered == ("phone7",)
    assert Named(["binder"], "{name}{set}").sets(["binder7"])[0].numbered == ("7",)


def test_a_set_of_fit_nodes_is_fit() -> None:
    """There is nothing to tell."""
    assert worst([("a", None), ("b", None)]) is None
    assert worst([]) is None


def test_reasons_are_as_severe_as_they_come_early_in_the_judgement() -> None:
    """A node that is not even there has shown less than one whose driver does not answer."""
    words = ["missing", "incomplete", "not-a-device", "not-binder", "replaced", "probe-failed"]
    assert [reason for reason in Reason if reason in words] == words


@pytest.mark.parametrize(("severe", "mild"), list(itertools.combinations(list(Reason)[2:], 2)))
def test_the_most_severe_reason_is_the_set_s(severe: Reason, mild: Reason) -> None:
    """Wherever in the set the node is, and with the nodes that have this reason alone."""
    members = [("a", mild), ("b", None), ("c", severe), ("d", mild)]
    assert worst(members) == worst(members[::-1]) == (severe, f"c is {severe}")
    assert worst([("a", severe), ("b", mild), ("c", severe)]) == (severe, f"a, c are {severe}")


@pytest.mark.parametrize("other", [None, *list(Reason)[2:]])
def test_a_set_with_a_missing_node_is_incomplete(other: Reason | None) -> None:
    """Whatever ails the others; the nodes that are missing are named in order."""
    assert worst([("a", other), ("b", Reason.MISSING)]) == (Reason.INCOMPLETE, "b is missing")
    assert worst([("c", Reason.MISSING), ("a", other), ("b", Reason.MISSING)]) == (
        Reason.INCOMPLETE,
        "c, b are missing",
    )


def test_a_set_of_which_nothing_is_there_is_missing() -> None:
    """So is a single node, which is a set of one."""
    assert worst([("a", Reason.MISSING)]) == (Reason.MISSING, "a is missing")
    assert worst([("a", Reason.MISSING), ("b", Reason.MISSING)]) == (Reason.MISSING, "a, b are missing")


def test_a_device_that_is_given_out_once_keeps_its_id() -> None:
    """Nothing is cut off, whatever its name looks like."""
    assert replica_ids("b7", 1) == ["b7"]
    assert split_replica("b7", 1) == ("b7", 0)
    assert split_replica("b7::3", 1) == ("b7::3", 0)


@pytest.mark.parametrize("device_id", ["b7", "phone-7", "a::1", "a:", "::", ":"])
def test_the_id_of_a_replica_leads_back_to_the_device(device_id: str) -> None:
    """A device's own name may look like a replica's."""
    assert replica_ids(device_id, 11)[::10] == [f"{device_id}::0", f"{device_id}::10"]
    assert [split_replica(one, 11) for one in replica_ids(device_id, 11)] == [(device_id, n) for n in range(11)]


@pytest.mark.parametrize(
    "replica_id", ["b7", "b7::2", "b7::02", "b7::01", "b7::", "b7::x", "::0", "b7:1", "b7::-1", ""]
)
def test_what_is_no_replica_is_refused(replica_id: str) -> None:
    """An ID of another time, when there were more replicas or none, leads to no device."""
    with pytest.raises(ValueError, match="is none of 2 replicas of a device"):
        split_replica(replica_id, 2)
