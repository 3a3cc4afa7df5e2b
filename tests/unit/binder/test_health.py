"""Why a node can't be handed out, and what becomes of it from one look to the next."""

from __future__ import annotations

import pytest

from aosp_plugin.binder.discovery.binder_device import BinderDevice, FileSystem, Identity, Kind
from aosp_plugin.binder.discovery.health import Reason, TrackedDevice, Verify, follow, judge

FORGET = 300.0
FS, NEW_FS = (70, 1), (70, 2)


def node(kind: Kind = Kind.BINDERFS, *, name: str = "b1", file_system: FileSystem = FS) -> BinderDevice:
    """Return a node that is there, unless its kind says otherwise."""
    identity = None if kind is Kind.ABSENT else Identity(file_system[0], 1, 2, file_system[1])
    return BinderDevice(name, f"/dev/{name}", kind, identity)


ABSENT = node(Kind.ABSENT)

LADDER = {
    Kind.BINDERFS: (None, None, None, None),
    Kind.CDEV: (None, None, None, None),
    Kind.STAND_IN: (None, None, Reason.NOT_BINDER, Reason.NOT_BINDER),
    Kind.FILE: (None, Reason.NOT_A_DEVICE, Reason.NOT_A_DEVICE, Reason.NOT_A_DEVICE),
    Kind.OTHER: (Reason.NOT_A_DEVICE,) * 4,
    Kind.ABSENT: (Reason.MISSING,) * 4,
}
"""What each kind is worth at file, char, binder and probe, where the probe succeeds."""


@pytest.mark.parametrize(
    ("kind", "verify", "reason"),
    [
        (kind, verify, reason)
        for kind, reasons in LADDER.items()
        for verify, reason in zip(Verify, reasons, strict=True)
    ],
)
def test_each_level_asks_for_more_than_the_one_before(kind: Kind, verify: Verify, reason: Reason | None) -> None:
    """A kind that fails a level fails all stricter ones, always with the same reason from there on."""
    assert judge(node(kind), verify, None, lambda _node: True) is reason
    assert judge(node(kind), verify, FS, lambda _node: True) is reason


def test_the_levels_are_in_order_of_strictness() -> None:
    """The table above, and the help of --verify, rely on it."""
    assert list(Verify) == ["file", "char", "binder", "probe"]


@pytest.mark.parametrize("verify", Verify)
def test_a_node_on_another_file_system_is_replaced(verify: Verify) -> None:
    """At every level, and before the probe is asked."""

    def probe(_node: BinderDevice) -> bool:
        raise AssertionError

    assert judge(node(file_system=NEW_FS), verify, FS, probe) is Reason.REPLACED


def test_a_file_system_that_must_be_the_same_may_be_the_number_zero() -> None:
    """Zero is a st_dev like any other; only None stands for any."""
    assert judge(node(file_system=FS), Verify.CHAR, (0, 0)) is Reason.REPLACED
    assert judge(node(file_system=(0, 0)), Verify.CHAR, (0, 0)) is None


def test_what_the_node_is_counts_before_where_it_is() -> None:
    """A plain file in the place of a node is called that, and not replaced."""
    assert judge(node(Kind.FILE, file_system=NEW_FS), Verify.CHAR, FS) is Reason.NOT_A_DEVICE
    assert judge(node(Kind.STAND_IN, file_system=NEW_FS), Verify.BINDER, FS) is Reason.NOT_BINDER


@pytest.mark.parametrize(
    ("verify", "asked", "reason"),
    [
        (Verify.FILE, False, None),
        (Verify.CHAR, False, None),
        (Verify.BINDER, False, None),
        (Verify.PROBE, True, Reason.PROBE_FAILED),
    ],
)
def test_only_the_strictest_level_probes(verify: Verify, asked: bool, reason: Reason | None) -> None:  # noqa: FBT001
    """The probe opens the node, so that it is called only where the operator asked for it."""
    probed: list[BinderDevice] = []

    def probe(found: BinderDevice) -> bool:
        probed.append(found)
        return False

    assert judge(node(), verify, None, probe) is reason
    assert probed == ([node()] if asked else [])


def test_without_a_probe_the_strictest_level_judges_by_the_look() -> None:
    """An allocation does not open the node again."""
    assert judge(node(), Verify.PROBE, FS) is None


class Followed:
    """A row of looks at one host, at the level char."""

    def __init__(self) -> None:
        self.known: dict[str, TrackedDevice] = {}

    def look(self, now: float, *nodes: BinderDevice) -> dict[str, Reason | None]:
        """Look, and return the reasons."""
        self.known = follow(
            self.known, nodes, now, FORGET, lambda found, file_system: judge(found, Verify.CHAR, file_system)
        )
        return {name: tracked.reason for name, tracked in self.known.items()}


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_a_node_is_healthy_at_its_first_look(followed: Followed) -> None:
    """What is remembered is the file system and the moment."""
    assert followed.look(7.0, node()) == {"b1": None}
    assert followed.known == {"b1": TrackedDevice(node(), FS, None, 7.0)}


def test_a_node_that_vanishes_is_missing_at_once_and_back_at_once(followed: Followed) -> None:
    """One look is enough in both directions."""
    followed.look(0.0, node())
    assert followed.look(1.0) == {"b1": Reason.MISSING}
    assert followed.known["b1"] == TrackedDevice(ABSENT, FS, Reason.MISSING, 1.0)
    assert followed.look(2.0, node()) == {"b1": None}
    assert followed.known["b1"].since == 2.0


def test_a_missing_node_is_forgotten_after_a_while(followed: Followed) -> None:
    """The time counts from the look that missed it, not from the last one."""
    followed.look(0.0, node())
    followed.look(10.0)
    assert followed.look(200.0) == {"b1": Reason.MISSING}
    assert followed.look(10.0 + FORGET - 0.1) == {"b1": Reason.MISSING}
    assert followed.look(10.0 + FORGET) == {}


def test_forgetting_one_node_leaves_the_others(followed: Followed) -> None:
    """Each has a time of its own."""
    followed.look(0.0, node(), node(name="b2"), node(name="b3"))
    followed.look(1.0, node(), node(name="b2"))
    followed.look(2.0, node())
    assert followed.look(1.0 + FORGET, node()) == {"b1": None, "b2": Reason.MISSING}


def test_an_ill_node_is_never_forgotten_while_it_is_there(followed: Followed) -> None:
    """A plain file in a node's place stays not-a-device, since its reason's first look."""
    followed.look(0.0, node(Kind.FILE))
    assert followed.look(10 * FORGET, node(Kind.FILE)) == {"b1": Reason.NOT_A_DEVICE}
    assert followed.known["b1"].since == 0.0


def test_a_node_on_a_new_file_system_is_replaced_and_heals_when_the_wait_is_over(followed: Followed) -> None:
    """Running containers hold nodes of the old binderfs; after the wait the new one is taken for good."""
    followed.look(0.0, node())
    assert followed.look(5.0, node(file_system=NEW_FS)) == {"b1": Reason.REPLACED}
    assert followed.look(5.0 + FORGET - 0.1, node(file_system=NEW_FS)) == {"b1": Reason.REPLACED}
    assert followed.known["b1"].since == 5.0
    assert followed.look(5.0 + FORGET, node(file_system=NEW_FS)) == {"b1": None}
    assert followed.known["b1"].file_system == NEW_FS
    assert followed.look(6.0 + FORGET, node(file_system=NEW_FS)) == {"b1": None}


def test_a_replaced_node_whose_old_file_system_is_back_is_healthy(followed: Followed) -> None:
    """A mount over the binderfs that is taken away again shows the old nodes."""
    followed.look(0.0, node())
    followed.look(1.0, node(file_system=NEW_FS))
    assert followed.look(2.0, node()) == {"b1": None}


def test_a_node_that_comes_back_on_another_file_system_is_replaced(followed: Followed) -> None:
    """Having been away does not make it a new node before the wait is over."""
    followed.look(0.0, node())
    followed.look(1.0)
    assert followed.look(2.0, node(file_system=NEW_FS)) == {"b1": Reason.REPLACED}
    assert followed.known["b1"].since == 2.0


def test_a_node_that_comes_back_after_the_wait_is_a_new_one(followed: Followed) -> None:
    """Even where no look in between had dropped it."""
    followed.look(0.0, node())
    followed.look(1.0)
    assert followed.look(1.0 + FORGET, node(file_system=NEW_FS)) == {"b1": None}


def test_a_replaced_node_that_vanishes_waits_anew(followed: Followed) -> None:
    """Each reason has a time of its own."""
    followed.look(0.0, node())
    followed.look(1.0, node(file_system=NEW_FS))
    assert followed.look(200.0) == {"b1": Reason.MISSING}
    assert followed.look(199.0 + FORGET) == {"b1": Reason.MISSING}
    assert followed.look(200.0 + FORGET) == {}


def test_a_replaced_node_that_vanishes_when_its_wait_is_over_is_dropped_at_once(followed: Followed) -> None:
    """Nothing of it is left to be remembered."""
    followed.look(0.0, node())
    followed.look(1.0, node(file_system=NEW_FS))
    assert followed.look(1.0 + FORGET) == {}


def test_a_dangling_link_stays_missing_as_long_as_it_is_there(followed: Followed) -> None:
    """It is in the directory, so that it must not come and go in the list as time goes by."""
    for now in (0.0, 1.0, FORGET, FORGET + 1.0, 2 * FORGET, 3 * FORGET + 0.5):
        assert followed.look(now, ABSENT) == {"b1": Reason.MISSING}
    assert followed.look(4 * FORGET, ABSENT) == {"b1": Reason.MISSING}


def test_a_dangling_link_whose_node_appears_is_healthy_at_once(followed: Followed) -> None:
    """A name that was never seen healthy has no file system that it would have to be on."""
    followed.look(0.0, ABSENT)
    assert followed.known["b1"].file_system is None
    assert followed.look(1.0, node(file_system=NEW_FS)) == {"b1": None}
    assert followed.known["b1"].file_system == NEW_FS


def test_a_dangling_link_that_is_removed_is_dropped_in_the_end(followed: Followed) -> None:
    """It had been missing all the time, and is dropped when the wait is over."""
    followed.look(0.0, ABSENT)
    assert followed.look(1.0) == {"b1": Reason.MISSING}
    assert followed.look(FORGET) == {}


def test_nothing_is_kept_where_nothing_is_to_be_remembered() -> None:
    """With missing_device_ttl 0 a vanished node is missing for one look, and gone at the next."""
    judgement = lambda found, file_system: judge(found, Verify.CHAR, file_system)  # noqa: E731
    known = follow({}, [node()], 0.0, 0.0, judgement)
    known = follow(known, [], 1.0, 0.0, judgement)
    assert known["b1"].reason is Reason.MISSING
    assert follow(known, [], 1.0, 0.0, judgement) == {}


def test_what_was_known_before_is_not_changed(followed: Followed) -> None:
    """A look that fails half-way, or a reader in another thread, must find the old state whole."""
    followed.look(0.0, node())
    before = followed.known
    copy = dict(before)
    followed.look(1.0, node(name="b2"))
    assert before == copy
    assert followed.known is not before


def test_a_node_that_was_never_fit_is_on_no_file_system_yet(followed: Followed) -> None:
    """A plain file in a node's place was given to no container: the node that follows it is no replacement."""
    assert followed.look(0.0, node(Kind.FILE)) == {"b1": Reason.NOT_A_DEVICE}
    assert followed.look(1.0, node(file_system=NEW_FS)) == {"b1": None}
