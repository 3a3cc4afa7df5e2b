"""Items: what keeps phones from being mounted: one clear line in the log, and nothing half-made on the host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.kernel import phones
from tests.e2e.kernel.item import Item, item
from tests.e2e.kernel.phones import DIRECTORY, RESOURCE, path
from tests.e2e.kernel.world import run, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.kernel.world import World

_COUNT: Final = 4
_TOO_MANY: Final = 40
_ROOM: Final = 20
"""The number of mounts that fs.mount-max leaves, with some that the mount table does not show."""
_MOUNT_MAX: Final = Path("/proc/sys/fs/mount-max")
_UNRELATED: Final = "devices of the kubelet are unknown"
"""The stand-in kubelet has no podresources API here."""
_PHONES: Final = f"phones: {{count: {_COUNT}}}\n"


async def no_rights(world: World) -> None:
    """Without CAP_SYS_ADMIN: one line that names the capability and what grants it; nothing is mounted or created."""
    await _refused(world, _PHONES, "CAP_SYS_ADMIN", wrapper=["setpriv", "--bounding-set=-sys_admin"])
    assert not os.path.exists(path("phone0")), "a directory is left"


async def no_room(world: World) -> None:
    """A count beyond fs.mount-max: one line that names it; the phones that fit are whole, and nothing else is left."""
    limit = _MOUNT_MAX.read_text()
    _MOUNT_MAX.write_text(str(len(Path("/proc/self/mountinfo").read_text().splitlines()) + _ROOM))
    try:
        await world.serve_with(f"phones: {{count: {_TOO_MANY}}}\n", resource=RESOURCE)
        await _one_line(world, "fs.mount-max")
        phones.require_whole(phones.mounted())
        assert 0 < len(phones.mounted()) < _TOO_MANY, f"{phones.mounted()}"
        assert sorted(os.listdir(DIRECTORY)) == sorted(phones.mounted()), "a directory is left"
    finally:
        _MOUNT_MAX.write_text(limit)
    await world.reload()
    await world.healthy(_TOO_MANY)
    phones.require_whole(phones.phones(_TOO_MANY))
    await world.stop()
    phones.unmount_all()


async def directory_taken(world: World) -> None:
    """A file in the directory's place, or other files in it: one line that names it; nothing is mounted or removed."""
    os.makedirs(os.path.dirname(DIRECTORY), exist_ok=True)
    taken = Path(DIRECTORY)
    taken.write_text("mine")
    await _refused(world, _PHONES, DIRECTORY)
    assert taken.read_text() == "mine"
    taken.unlink()
    taken.mkdir()
    (taken / "notes").write_text("mine")
    await _refused(world, _PHONES, DIRECTORY)
    assert [file.name for file in taken.iterdir()] == ["notes"]
    (taken / "notes").unlink()
    taken.rmdir()


async def phone_taken(world: World) -> None:
    """A file where one phone belongs: one line that names it; the file stays, and the other phones are whole."""
    os.makedirs(path("phone1"))
    Path(path("phone1", "notes")).write_text("mine")
    await world.serve_with(_PHONES, resource=RESOURCE)
    await _one_line(world, path("phone1"))
    wanted = [phone for phone in phones.phones(_COUNT) if phone != "phone1"]
    await until(lambda: len(phones.mounted()) == len(wanted), "the others are mounted")
    phones.require_whole(wanted)
    os.unlink(path("phone1", "notes"))
    await world.reload()
    await world.healthy(_COUNT)
    await world.stop()
    phones.unmount_all()


async def below_dev(world: World) -> None:
    """A directory below /dev: exit code 2 and one line, because each privileged container would get all devices."""
    for directory in ("/dev/phones", "/dev/../dev/phones"):
        world.configure(f"phones: {{count: 2, directory: {directory}}}\n")
        done = await run(*world.command)
        assert done.code == 2, done
        assert "/dev" in done.err, done
        assert done.err.count("\n") == 1, f"not one line: {done.err}"
    assert not os.path.exists("/dev/phones")
    assert not phones.mounted()


async def no_binderfs(world: World) -> None:
    """For phones, the plugin reports in one line that this kernel has no binderfs, and creates nothing."""
    await _refused(world, _PHONES, "this kernel has no binderfs")
    assert not os.path.exists(path("phone0")), "a directory is left"


async def _refused(world: World, configuration: str, text: str, wrapper: Sequence[str] = ()) -> None:
    """Check that the plugin mounts nothing, and says why in one line with this text."""
    await world.serve_with(configuration, resource=RESOURCE, wrapper=wrapper)
    await _one_line(world, text)
    assert not phones.mounted(), f"mounted: {phones.mounted()}"
    await world.stop()
    assert not phones.mounted(), f"mounted: {phones.mounted()}"


async def _one_line(world: World, text: str) -> None:
    """Wait until the log has one line of a problem with this text, and check that there is no other problem."""
    await until(lambda: text in world.logged(), f"the log has {text!r}: {world.logged()[-300:]}")
    lines = [line for line in world.logged().splitlines() if _UNRELATED not in line]
    problems = [line for line in lines if " ERROR " in line or " WARNING " in line]
    assert len(problems) == 1, f"not one line: {problems}"
    assert text in problems[0], problems


ITEMS: Final[list[Item[World]]] = [
    item(function) for function in (no_rights, no_room, directory_taken, phone_taken, below_dev)
]
