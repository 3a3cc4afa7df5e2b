"""``hack/binder_nodes.py`` on a real binderfs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.driver import binderfs
from tests.e2e.kernel.item import Item, item
from tests.e2e.kernel.world import BINDERFS, NODES, PATIENCE, Result, make_nodes, nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.e2e.kernel.world import World

MANY: Final = 10_000
SOMEBODY: Final = 65534
"""The user and group ID of nobody in particular."""


async def create(_: World) -> None:
    """create --count 10000 makes 10,000 nodes on a binderfs of its own, and a link in /dev to each."""
    done = await nodes("create", "--count", str(MANY))
    summary = "/dev: aosp_binder0 to aosp_binder9999 are there, 10000 made now and 0 before"
    _says(done, 0, f"{summary} (binderfs at {BINDERFS})\n", "")
    assert set(binderfs.devices_in(BINDERFS)) == set(_names(MANY))
    wrong = [name for name in _names(MANY) if os.readlink(f"/dev/{name}") != f"{BINDERFS}/{name}"]
    assert not wrong, f"links that lead elsewhere: {wrong[:5]}"


async def every_node_answers(_: World) -> None:
    """Each of the 10,000 nodes opens through its link, and answers BINDER_VERSION with 8."""
    versions = {binderfs.binder_version(f"/dev/{name}") for name in _names(MANY)}
    assert versions == {8}, versions


async def listing(_: World) -> None:
    """list names all of them by number, with their kind and file."""
    done = await nodes("list")
    _says(done, 0, "".join(f"{name}\tbinderfs\t{BINDERFS}/{name}\n" for name in _names(MANY)), "")


async def delete(_: World) -> None:
    """delete removes all of them, and leaves no link, no mount and no ledger."""
    done = await nodes("delete")
    _says(done, 0, "/dev: 10000 nodes deleted, 0 things left\n", "")
    _nothing_left()


async def full(_: World) -> None:
    """A mount whose max= is reached ends create with 1 and one line; raised, the rest is made."""
    done = await nodes("create", "--count", "6", "--max", "4")
    reason = "the mount's max=4 is reached: remount it with a larger max="
    _says(done, 1, "", f"error: cannot create {BINDERFS}/aosp_binder4: {reason}\n")
    done = await nodes("create", "--count", "6", "--max", "6")
    _says(done, 0, "/dev: aosp_binder0 to aosp_binder5 are there, 2 made now and 4 before", "", begins=True)
    await _delete_all(6)


async def taken(_: World) -> None:
    """A name that is taken, in /dev or in the binderfs, ends create with 1 and one line, and nothing is made."""
    await make_nodes("create", "--count", "2")
    binderfs.add_device(BINDERFS, "aosp_binder5")
    why = "is taken by something that was not made here by way of binderfs: remove it, or choose another prefix"
    done = await nodes("create", "--count", "8")
    _says(done, 1, "", f"error: {BINDERFS}/aosp_binder5 {why} or start\n")
    os.symlink("null", "/dev/aosp_binder6")
    done = await nodes("create", "--count", "8")
    _says(done, 1, "", f"error: {BINDERFS}/aosp_binder5 (and 1 more) {why} or start\n")
    assert set(binderfs.devices_in(BINDERFS)) == {"aosp_binder0", "aosp_binder1", "aosp_binder5"}
    os.unlink("/dev/aosp_binder6")
    binderfs.remove_device(BINDERFS, "aosp_binder5")
    await _delete_all(2)


async def not_root(_: World) -> None:
    """Another user than root is told so in one line, with exit code 1, by create and by delete."""
    done = await nodes("create", "--count", "2", "--way", "binderfs", user=SOMEBODY)
    _says(done, 1, "", "error: can't ", begins=True)
    assert "run as root" in done.err, done.err
    await make_nodes("create", "--count", "2")
    done = await nodes("create", "--count", "3", "--way", "binderfs", user=SOMEBODY)
    _says(done, 1, "", "error: can't ", begins=True)
    done = await nodes("delete", user=SOMEBODY)
    _says(done, 1, "", "error: can't ", begins=True)
    await _delete_all(2)


async def interrupted(_: World) -> None:
    """Interrupted by Ctrl-C, create ends with 130 and says how far it got; the same command goes on from there."""
    done = await _cut_short(signal.SIGINT)
    made = len(binderfs.devices_in(BINDERFS))
    assert 0 < made < MANY, made
    assert done.code == 130, done
    assert done.err.startswith("interrupted after "), done.err
    assert done.err.endswith(" nodes: the same command goes on from there\n"), done.err
    again = await nodes("create", "--count", str(MANY))
    assert again.code == 0, again
    assert len(binderfs.devices_in(BINDERFS)) == MANY
    await _delete_all(MANY)


async def killed(_: World) -> None:
    """Killed in the middle, it leaves nothing that delete would not remove."""
    await _cut_short(signal.SIGKILL)
    assert 0 < len(binderfs.devices_in(BINDERFS)) < MANY
    done = await nodes("delete")
    assert (done.code, done.err) == (0, ""), done
    _nothing_left()


async def _cut_short(number: signal.Signals) -> Result:
    """Start to create many nodes, and send the signal when some are there."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(NODES), "create", "--count", str(MANY)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        while not os.path.lexists("/dev/aosp_binder99"):
            await asyncio.sleep(0.005)
    process.send_signal(number)
    out, err = await process.communicate()
    return Result(process.returncode or 0, out.decode(), err.decode())


async def _delete_all(count: int) -> None:
    done = await nodes("delete")
    _says(done, 0, f"/dev: {count} nodes deleted, 0 things left\n", "")
    _nothing_left()


def _nothing_left() -> None:
    left = [name for name in os.listdir("/dev") if "binder" in name]
    assert not left, f"left in /dev: {left[:5]}"
    assert binderfs.mount_at(BINDERFS) is None, "still mounted"
    assert not os.listdir(BINDERFS)


def _says(done: Result, code: int, out: str, err: str, *, begins: bool = False) -> None:
    """Compare what a command said: all of it, or how it begins; an error is one line."""
    found = Result(done.code, done.out[: len(out)], done.err[: len(err)]) if begins else done
    assert found == (code, out, err), f"exit code {done.code}, out {done.out[:300]!r}, err {done.err[:300]!r}"
    assert done.err.count("\n") == bool(done.err), f"not one line: {done.err!r}"


def _names(count: int) -> Iterable[str]:
    return [f"aosp_binder{number}" for number in range(count)]


ITEMS: Final[list[Item[World]]] = [
    item(one) for one in (create, every_node_answers, listing, delete, full, taken, not_root, interrupted, killed)
]
