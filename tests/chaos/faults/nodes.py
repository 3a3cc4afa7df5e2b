"""Nodes that come, go, and become something else."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from tests.chaos.files import make_node
from tests.chaos.registry import at_once

if TYPE_CHECKING:
    import random

    from tests.chaos.world import World


@at_once("nodes", weight=6)
def nodes_come(world: World, rng: random.Random) -> None:
    """Some nodes are made."""
    for name in world.nodes.new_names(rng, 20):
        world.nodes.make(name)


@at_once("nodes", weight=6)
def nodes_go(world: World, rng: random.Random) -> None:
    """Some nodes are deleted."""
    for name in world.nodes.some(rng, 20):
        world.nodes.remove(name)


@at_once("nodes", weight=2)
def all_nodes_go(world: World, rng: random.Random) -> None:
    """Every node is deleted."""
    for name in world.nodes.names():
        world.nodes.remove(name)


@at_once("nodes")
def nodes_are_made_anew(world: World, rng: random.Random) -> None:
    """Some nodes are deleted and made again at once."""
    for name in world.nodes.some(rng, 20):
        world.nodes.make(name)


@at_once("nodes")
def a_node_flaps(world: World, rng: random.Random) -> None:
    """A node comes and goes some hundred times, and may be there in the end or not."""
    (name,) = world.nodes.new_names(rng, 1)
    for _ in range(rng.randint(100, 300)):
        world.nodes.make(name)
        world.nodes.remove(name)
    if rng.random() < 0.5:
        world.nodes.make(name)


@at_once("nodes", weight=2)
def nodes_come_by_the_thousand(world: World, rng: random.Random) -> None:
    """A thousand nodes or two are made as fast as can be."""
    prefix = rng.choice(world.nodes.prefixes)
    for number in range(1000, 1000 + rng.choice([300, 1000, 2000])):
        world.nodes.make(f"{prefix}{number}")


@at_once("nodes", weight=3)
def many_nodes_go(world: World, rng: random.Random) -> None:
    """All nodes beyond some are deleted as fast as can be."""
    for name in world.nodes.names()[rng.randint(5, 40) :]:
        world.nodes.remove(name)


@at_once("nodes")
def a_node_becomes_a_pipe(world: World, rng: random.Random) -> None:
    """A pipe stands in the place of a node."""
    for name in world.nodes.some(rng, 2):
        world.nodes.remove(name)
        os.mkfifo(world.nodes.path(name))


@at_once("nodes")
def a_node_becomes_a_directory(world: World, rng: random.Random) -> None:
    """A directory with a file in it stands in the place of a node."""
    for name in world.nodes.some(rng, 2):
        world.nodes.remove(name)
        os.mkdir(world.nodes.path(name))
        make_node(os.path.join(world.nodes.path(name), name), world.nodes.device)


@at_once("nodes")
def a_node_becomes_a_socket(world: World, rng: random.Random) -> None:
    """A socket stands in the place of a node."""
    for name in world.nodes.some(rng, 1):
        world.nodes.remove(name)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(world.nodes.path(name))


@at_once("nodes")
def a_node_becomes_a_file(world: World, rng: random.Random) -> None:
    """A plain file with something in it stands in the place of a node."""
    for name in world.nodes.some(rng, 2):
        world.nodes.remove(name)
        with open(world.nodes.path(name), "wb") as file:
            file.write(b"no node")


@at_once("nodes", weight=6)
def a_node_is_renamed(world: World, rng: random.Random) -> None:
    """Some nodes have other names from now on, and everything else of theirs stays."""
    free = iter(world.nodes.new_names(rng, 5))
    for old, new in zip(world.nodes.some(rng, 5), free, strict=False):
        os.rename(world.nodes.path(old), world.nodes.path(new))


@at_once("nodes")
def two_nodes_swap_names(world: World, rng: random.Random) -> None:
    """Two that stand there, whatever they are, change their names with each other."""
    there = world.nodes.names()
    if len(there) > 1:
        one, other = map(world.nodes.path, rng.sample(there, 2))
        aside = os.path.join(world.nodes.directory, ".aside")
        os.rename(one, aside)
        os.rename(other, one)
        os.rename(aside, other)


@at_once("nodes")
def a_node_moves_out_and_in(world: World, rng: random.Random) -> None:
    """Some nodes are moved into another directory, and some of those back."""
    if os.path.ismount(world.nodes.directory):
        return  # out of which nothing can be moved
    for name in world.nodes.some(rng, 5):
        aside = os.path.join(world.root, "aside")
        os.rename(world.nodes.path(name), aside)
        if rng.random() < 0.5 or os.path.isdir(aside):
            os.rename(aside, world.nodes.path(name))
        else:
            os.unlink(aside)


@at_once("nodes", weight=2)
def names_that_no_device_can_have(world: World, rng: random.Random) -> None:
    """Nodes come whose names are too long, or have a space, a comma, a line's end, or bytes that are no text."""
    prefix = os.fsencode(rng.choice(world.nodes.prefixes))
    for end in (b" 1", b"1,2", b"\n", b"\xff\xfe", b"9" * 80):
        path = os.path.join(os.fsencode(world.nodes.directory), prefix + end)
        if not os.path.lexists(path):
            make_node(os.fsdecode(path), world.nodes.device)


@at_once("nodes", weight=2)
def names_at_the_edge(world: World, rng: random.Random) -> None:
    """Nodes come that are called like the prefix alone, with leading zeros, a word, or a very large number."""
    prefix = rng.choice(world.nodes.prefixes)
    for end in ("", "007", "x", "-a.b_c", "99999999999"):
        world.nodes.make(prefix + end)


@at_once("nodes", weight=2)
def nothing_but_noise(world: World, rng: random.Random) -> None:
    """Other files come and go beside the nodes, and nodes change their modes: no device is another one for that."""
    for number in range(rng.randint(1, 500)):
        path = os.path.join(world.nodes.directory, f"other{number}")
        with open(path, "wb"):
            pass
        os.unlink(path)
    for name in world.nodes.some(rng, 5):
        path = world.nodes.path(name)
        if not os.path.islink(path):
            os.chmod(path, rng.choice([0o600, 0o666]))
