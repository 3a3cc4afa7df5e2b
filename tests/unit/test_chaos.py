"""What chaos rests on: the choice of faults, the model of what the kubelet should know, the tally."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos import choice, faults, setups
from tests.chaos.choice import MOST, goes_with, plan
from tests.chaos.expected import Answer, Model, Seen
from tests.chaos.files import Nodes
from tests.chaos.invariants import INVARIANTS
from tests.chaos.registry import FAULTS, Fault, at_once
from tests.chaos.setups import SETUPS, Served, of_seed
from tests.chaos.tally import Tally

if TYPE_CHECKING:
    from pathlib import Path

FIT, UNFIT = Seen(Answer.YES, Answer.YES), Seen(Answer.YES, Answer.NO)


def of(names: tuple[str, ...]) -> list[Fault]:
    return [FAULTS[name] for name in names]


@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(0, 12))
def test_steps_follow_from_the_seed(seed: int, steps: int, more: int) -> None:
    """The same seed makes the same steps, and a longer run begins as a shorter one."""
    assert plan(seed, steps, FAULTS.values()) == plan(seed, steps + more, reversed(FAULTS.values()))[:steps]


def test_other_seeds_make_other_steps() -> None:
    """No two of a hundred seeds make the same steps."""
    assert len({tuple(step.faults for step in plan(seed, 10, FAULTS.values())) for seed in range(100)}) == 100


@given(st.integers(0, 2**32))
def test_the_faults_of_a_step_go_together(seed: int) -> None:
    """One to four, each once; those that last come first, and each goes with those before it."""
    for step in plan(seed, 5, FAULTS.values()):
        chosen = of(step.faults)
        assert 1 <= len(set(chosen)) == len(chosen) <= MOST
        assert [fault.lasts for fault in chosen] == sorted((fault.lasts for fault in chosen), reverse=True)
        for fault in chosen:
            assert goes_with(fault, [other for other in chosen if other is not fault])


def test_every_fault_is_chosen() -> None:
    """In some hundred steps each happens."""
    happened = Counter(name for step in plan(1, 800, FAULTS.values()) for name in step.faults)
    assert happened.keys() == FAULTS.keys()


def test_only_nodes_come_and_go_while_the_plugin_could_not_start() -> None:
    """Nothing restarts the plugin where it would be right not to start."""
    alone, killed, nodes = FAULTS["no-descriptor"], FAULTS["plugin-is-killed"], FAULTS["nodes-go"]
    assert not goes_with(killed, [alone])
    assert not goes_with(alone, [killed])
    assert goes_with(nodes, [alone])
    assert goes_with(alone, [nodes])


def test_a_fault_without_a_sentence_is_refused() -> None:
    """And so is one whose name there is already."""
    with pytest.raises(ValueError, match="no docstring"):
        at_once("nodes")(lambda _world, _rng: None)
    with pytest.raises(ValueError, match="there already"):
        at_once("nodes")(faults.nodes.nodes_go)


def test_every_fault_and_invariant_says_what_it_is() -> None:
    """In one sentence, which is printed."""
    for sentence in [*(fault.sentence for fault in FAULTS.values()), *(check.__doc__ or "" for check in INVARIANTS)]:
        assert sentence.endswith(".")
        assert "\n" not in sentence


def test_seeds_in_a_row_have_every_setup() -> None:
    """As many as there are setups."""
    assert {of_seed(seed).name for seed in range(5, 5 + len(SETUPS))} == {setup.name for setup in SETUPS}
    assert choice.LASTING < MOST
    assert setups.SETUPS is SETUPS


class Seeing:
    """A directory of nodes, which are files, and a model of it."""

    def __init__(self, root: Path, served: Served) -> None:
        self.served = served
        self.nodes = Nodes(str(root / "dev"), str(root / "run"), [served.prefix])
        self.nodes.device = None
        self.model = Model([served], self.nodes)

    def agree(self) -> None:
        """Have a plugin tell what the model expects."""
        told = {
            device: "Healthy" if seen.fit is Answer.YES else "Unhealthy"
            for device, seen in self.model.devices(self.served).items()
            if seen.listed is Answer.YES
        }
        assert self.model.difference(self.served, told) == ""
        self.model.agree({self.served.name: told})

    def differs(self, told: dict[str, str]) -> str:
        """Say where a plugin that tells this is wrong."""
        return self.model.difference(self.served, told)


@pytest.fixture
def seeing(tmp_path: Path) -> Seeing:
    return Seeing(tmp_path, Served())


def test_a_node_is_fit_by_what_stands_there(seeing: Seeing) -> None:
    """Nodes and links to them are; pipes and links to nowhere are told as unhealthy, directories not at all."""
    for name in ("aosp_binder1", "aosp_binder2", "aosp_binder3"):
        seeing.nodes.make(name)
    seeing.nodes.link("aosp_binder4")
    seeing.nodes.link("aosp_binder5", to="/nowhere")
    seeing.nodes.remove("aosp_binder2")
    os.mkfifo(seeing.nodes.path("aosp_binder2"))
    seeing.nodes.remove("aosp_binder3")
    os.mkdir(seeing.nodes.path("aosp_binder3"))
    assert seeing.model.devices(seeing.served) == {
        "aosp_binder1": FIT,
        "aosp_binder2": UNFIT,
        "aosp_binder3": Seen(Answer.EITHER, Answer.NO),
        "aosp_binder4": FIT,
        "aosp_binder5": UNFIT,
    }


def test_every_difference_is_one(seeing: Seeing) -> None:
    """A device too few, one too many, and one whose health is wrong."""
    seeing.nodes.make("aosp_binder1")
    assert seeing.differs({"aosp_binder1": "Healthy"}) == ""
    assert "is not told" in seeing.differs({})
    assert "aosp_binder9 is told, and never was" in seeing.differs({"aosp_binder1": "Healthy", "aosp_binder9": "x"})
    assert "is told as Unhealthy" in seeing.differs({"aosp_binder1": "Unhealthy"})
    seeing.nodes.remove("aosp_binder1")
    assert "is told as Healthy" in seeing.differs({"aosp_binder1": "Healthy"})


def test_a_node_that_was_there_stays_as_an_unhealthy_one(seeing: Seeing) -> None:
    """Until the plugin may have forgotten it, or is another process."""
    seeing.nodes.make("aosp_binder1")
    seeing.agree()
    seeing.nodes.remove("aosp_binder1")
    assert "is not told" in seeing.differs({})
    seeing.model.may_have_forgotten()
    assert seeing.differs({}) == seeing.differs({"aosp_binder1": "Unhealthy"}) == ""
    seeing.model.agree({seeing.served.name: {}})
    assert seeing.differs({}) == ""
    seeing.model.started_anew()
    assert seeing.differs({}) == ""


def test_a_node_on_another_file_system_is_not_fit(seeing: Seeing, tmp_path: Path) -> None:
    """Where the plugin knew it on the first one; what it may have seen on both can be either."""
    seeing.nodes.make("aosp_binder1")
    seeing.agree()
    seeing.nodes.link("aosp_binder1", to="/proc/version")
    assert "is told as Healthy" in seeing.differs({"aosp_binder1": "Healthy"})
    seeing.nodes.link("aosp_binder2", to="/proc/version")
    seeing.model.remounted()
    for health in ("Healthy", "Unhealthy"):
        assert seeing.differs({"aosp_binder1": "Unhealthy", "aosp_binder2": health}) == ""


def test_sets_and_replicas(tmp_path: Path) -> None:
    """A set is listed with one of its nodes and fit with all; each replica is told by itself."""
    seeing = Seeing(tmp_path, Served(size=2, replicas=2))
    for number in ("0", "1", "2", "07", "x"):
        seeing.nodes.make(f"aosp_binder{number}")
    assert seeing.model.devices(seeing.served) == {
        "aosp_binder0::0": FIT,
        "aosp_binder0::1": FIT,
        "aosp_binder2::0": UNFIT,
        "aosp_binder2::1": UNFIT,
    }


def test_the_tally_counts(tmp_path: Path) -> None:
    """Faults, steps, and the times of each fault."""
    tally = Tally()
    tally.settled(["nodes-go", "nodes-come"], 1.0)
    tally.settled(["nodes-go"], 3.0)
    assert tally.faults == 3
    assert tally.by_fault == {"nodes-go": [1.0, 3.0], "nodes-come": [1.0]}
    assert "median 2.00 s, worst 3.00 s" in tally.lines()[1]
    assert tally.table().row_count == 2
