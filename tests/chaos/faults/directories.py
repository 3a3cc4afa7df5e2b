"""The directories themselves: replaced, gone for a while, mounted over."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.chaos import place
from tests.chaos.files import make_node, remove
from tests.chaos.registry import at_once, for_a_while

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from tests.chaos.world import World


@at_once("nodes", weight=3)
def device_directory_is_replaced(world: World, rng: random.Random) -> None:
    """Another directory, with some of the nodes and some others, is put in the place of the device directory."""
    if os.path.ismount(world.nodes.directory):
        return  # which can't be moved
    before, new = world.nodes.directory + ".old", world.nodes.directory + ".new"
    os.mkdir(new)
    names = [*world.nodes.some(rng, 30), *world.nodes.new_names(rng, 5)]
    for name in names:
        world.nodes.ever.add(name)
        make_node(os.path.join(new, name), world.nodes.device)
    os.rename(world.nodes.directory, before)
    os.rename(new, world.nodes.directory)
    remove(before)


@at_once("nodes", weight=3)
def second_directory_is_replaced(world: World, rng: random.Random) -> None:
    """Another directory, with some of the nodes, is put in the place of the one that links lead into."""
    if os.path.ismount(world.nodes.elsewhere):
        return
    before, new = world.nodes.elsewhere + ".old", world.nodes.elsewhere + ".new"
    os.mkdir(new)
    for name in sorted(os.listdir(world.nodes.elsewhere)):
        if rng.random() < 0.7:
            make_node(os.path.join(new, name), world.nodes.device)
    os.rename(world.nodes.elsewhere, before)
    os.rename(new, world.nodes.elsewhere)
    remove(before)


@for_a_while("directories", weight=3, livable=True)
async def device_directory_is_away(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The device directory is moved away, with an empty one in its place, and back."""
    aside = world.nodes.directory + ".aside"
    os.rename(world.nodes.directory, aside)
    os.mkdir(world.nodes.directory)
    yield
    remove(world.nodes.directory)
    os.rename(aside, world.nodes.directory)


@for_a_while("directories", weight=3, livable=True)
async def second_directory_is_away(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The directory that links lead into is moved away, with an empty one in its place, and back."""
    aside = world.nodes.elsewhere + ".aside"
    if os.path.ismount(world.nodes.elsewhere):
        place.unmount(world.nodes.elsewhere)
        world.model.remounted()
    os.rename(world.nodes.elsewhere, aside)
    os.mkdir(world.nodes.elsewhere)
    yield
    if os.path.ismount(world.nodes.elsewhere):
        place.unmount(world.nodes.elsewhere)
        world.model.remounted()
    remove(world.nodes.elsewhere)
    os.rename(aside, world.nodes.elsewhere)


@at_once("nodes", weight=5, needs=("namespace",))
def second_directory_is_mounted_over(world: World, rng: random.Random) -> None:
    """Where links lead, another file system with nodes of the same names is mounted and stays, or is taken away."""
    world.model.remounted()
    if os.path.ismount(world.nodes.elsewhere):
        place.unmount(world.nodes.elsewhere)
        return
    there = [name for name in sorted(os.listdir(world.nodes.elsewhere)) if rng.random() < 0.8]
    place.mount(world.nodes.elsewhere)
    for name in there:
        make_node(world.nodes.target(name), world.nodes.device)


@for_a_while("directories", weight=2, needs=("namespace",), livable=True)
async def device_directory_is_mounted_over(world: World, rng: random.Random) -> AsyncIterator[None]:
    """Another file system with nodes of the same names is mounted over the device directory."""
    there = [name for name in world.nodes.names() if rng.random() < 0.8]
    world.model.remounted()
    place.mount(world.nodes.directory)
    for name in there:
        world.nodes.make(name)
    yield
    world.model.remounted()
    place.unmount(world.nodes.directory)


@at_once("nodes", weight=2, needs=("namespace",))
def something_is_mounted_somewhere(world: World, rng: random.Random) -> None:
    """A file system comes and goes where no node is."""
    there = os.path.join(world.root, "somewhere")
    os.makedirs(there, exist_ok=True)
    place.mount(there)
    place.unmount(there)


@for_a_while("directories", alone=True)
async def kubelet_directory_is_away(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet's directory is moved away under a kubelet that runs, and back, and the kubelet restarts."""
    aside = world.plugins + ".aside"
    os.rename(world.plugins, aside)
    if rng.random() < 0.5:
        os.mkdir(world.plugins)
    yield
    remove(world.plugins)
    os.rename(aside, world.plugins)
    await world.restart_kubelet(keep_sockets=rng.random() < 0.5)


@for_a_while("directories", alone=True)
async def kubelet_directory_is_replaced(world: World, rng: random.Random) -> AsyncIterator[None]:
    """The kubelet is killed, its directory removed with all that is in it, and made again by the next kubelet."""
    await world.stop_kubelet()
    remove(world.plugins)
    yield
    await world.start_kubelet()


@for_a_while("directories", alone=True)
async def kubelet_directory_is_emptied(world: World, rng: random.Random) -> AsyncIterator[None]:
    """Everything in the kubelet's directory is deleted under a kubelet that runs, until somebody restarts it."""
    for name in os.listdir(world.plugins):
        remove(os.path.join(world.plugins, name))
    yield
    await world.restart_kubelet()


@for_a_while("directories", alone=True, weight=2, needs=("namespace",))
async def kubelet_directory_is_mounted_over(world: World, rng: random.Random) -> AsyncIterator[None]:
    """A file system is mounted over the kubelet's directory, a kubelet starts there, and it is taken away again."""
    await world.stop_kubelet()
    place.mount(world.plugins)
    await world.start_kubelet()
    yield
    await world.stop_kubelet()
    place.unmount(world.plugins)
    await world.start_kubelet()
