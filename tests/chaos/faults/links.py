"""Nodes that are links, and what they lead to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.chaos.files import make_node, remove
from tests.chaos.registry import at_once

if TYPE_CHECKING:
    import random

    from tests.chaos.world import World


@at_once("nodes")
def links_come(world: World, rng: random.Random) -> None:
    """Some links come, to nodes in a second directory."""
    for name in world.nodes.new_names(rng, 8):
        world.nodes.link(name)


@at_once("nodes")
def a_node_becomes_a_link(world: World, rng: random.Random) -> None:
    """Some nodes become links, to nodes in a second directory."""
    for name in world.nodes.some(rng, 5):
        world.nodes.link(name)


@at_once("nodes")
def a_node_becomes_a_link_to_nowhere(world: World, rng: random.Random) -> None:
    """A link that leads nowhere stands in the place of a node."""
    for name in world.nodes.some(rng, 3):
        world.nodes.link(name, to=os.path.join(rng.choice([world.nodes.elsewhere, "/nowhere/at/all"]), "nothing"))


@at_once("nodes", weight=2)
def a_node_becomes_a_loop(world: World, rng: random.Random) -> None:
    """A link that leads to itself stands in the place of a node."""
    for name in world.nodes.some(rng, 2):
        world.nodes.link(name, to=name)


@at_once("nodes", weight=2)
def a_node_becomes_a_link_to_a_directory(world: World, rng: random.Random) -> None:
    """A link to a directory stands in the place of a node."""
    for name in world.nodes.some(rng, 2):
        world.nodes.link(name, to="/tmp")


@at_once("nodes", weight=6)
def targets_go(world: World, rng: random.Random) -> None:
    """Some of what links lead to is deleted."""
    there = sorted(os.listdir(world.nodes.elsewhere))
    for name in rng.sample(there, min(6, len(there))):
        remove(world.nodes.target(name))


@at_once("nodes", weight=6)
def targets_come(world: World, rng: random.Random) -> None:
    """Everything that links lead to in the second directory is there again."""
    for name in world.nodes.names():
        if os.path.islink(world.nodes.path(name)) and not os.path.lexists(world.nodes.target(name)):
            make_node(world.nodes.target(name), world.nodes.device)


@at_once("nodes")
def targets_become_something_else(world: World, rng: random.Random) -> None:
    """Pipes and directories stand in the place of what links lead to."""
    there = sorted(os.listdir(world.nodes.elsewhere))
    for name in rng.sample(there, min(3, len(there))):
        remove(world.nodes.target(name))
        rng.choice([os.mkdir, os.mkfifo])(world.nodes.target(name))


@at_once("nodes")
def a_link_leads_elsewhere(world: World, rng: random.Random) -> None:
    """Links are replaced at once (rename) by links to other nodes, or to none."""
    for name in world.nodes.some(rng, 4):
        path = world.nodes.path(name)
        if os.path.islink(path):
            aside = os.path.join(world.nodes.directory, ".aside")
            os.symlink(world.nodes.target(rng.choice([name, name + "0"])), aside)
            os.rename(aside, path)


@at_once("nodes", weight=3)
def links_lead_through_links(world: World, rng: random.Random) -> None:
    """Links lead through a link in a third directory to a node."""
    for name in world.nodes.some(rng, 3):
        world.nodes.link(name)
        between = os.path.join(world.root, "between")
        os.makedirs(between, exist_ok=True)
        remove(os.path.join(between, name))
        os.symlink(world.nodes.target(name), os.path.join(between, name))
        world.nodes.link(name, to=os.path.join(between, name))


@at_once("nodes", weight=3)
def links_between_change(world: World, rng: random.Random) -> None:
    """The links in that third directory lead elsewhere, nowhere, or are gone."""
    between = os.path.join(world.root, "between")
    for name in sorted(os.listdir(between)) if os.path.isdir(between) else ():
        remove(os.path.join(between, name))
        to = rng.choice([world.nodes.target(name), world.nodes.target("nothing"), None])
        if to is not None:
            os.symlink(to, os.path.join(between, name))
