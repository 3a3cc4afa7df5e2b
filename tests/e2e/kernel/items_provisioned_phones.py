"""Items: phones that `aosp-plugin provision` mounts, and a plugin without any capability that serves them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tests.e2e.kernel import items_binderfs_phones, phones
from tests.e2e.kernel.containers import check, start
from tests.e2e.kernel.item import Item, for_each_runtime, item
from tests.e2e.kernel.phones import NAMES, RESOURCE, path, phone_of
from tests.e2e.kernel.world import CONFIGURATION, World, is_open, run, until

COUNT: Final = 4
TEXT: Final = f"log_format: json\nphones: {{count: {COUNT}}}\n"
SERVED: Final = f"{TEXT}provisioned_by: command\n"
UNPRIVILEGED: Final = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
"""Runs a command as root without capabilities, like the container of deploy/provision."""


async def _provision() -> str:
    """Run the command that the init container runs, and return its log. Raises AssertionError if it fails."""
    result = await run(sys.executable, "-m", "aosp_plugin", "provision", "--config", str(CONFIGURATION))
    assert result.code == 0, f"{result}"
    return result.err


async def provisioned(world: World) -> None:
    """`aosp-plugin provision` mounts 4 whole phones; a second call keeps them; without capabilities it mounts none."""
    world.configure(TEXT)
    command = (sys.executable, "-m", "aosp_plugin", "provision", "--config", str(CONFIGURATION))
    refused = await run(*UNPRIVILEGED, *command)
    assert (refused.code, phones.mounted()) == (1, {}), f"{refused}"
    assert "requires CAP_SYS_ADMIN" in refused.err, refused.err
    log = await _provision()
    assert f'"ordered": {COUNT}, "added": {COUNT}' in log, log
    phones.require_whole(phones.phones(COUNT))
    before = phones.mounted()
    log = await _provision()
    assert '"added": 0' in log, log
    assert phones.mounted() == before


async def without_rights(world: World) -> None:
    """A plugin without any capability advertises them as healthy, and neither fails nor mounts anything."""
    before, messages = phones.mounted(), world.kubelet.resource(RESOURCE).messages
    await world.serve_with(SERVED, resource=RESOURCE, wrapper=UNPRIVILEGED)
    await world.healthy(COUNT)
    assert world.process is not None
    status = Path("/proc", str(world.process.pid), "status").read_text()
    held = [line for line in status.splitlines() if line.startswith(("CapPrm", "CapEff", "CapBnd"))]
    assert {line.split()[1].strip("0") for line in held} == {""}, f"{held}"
    assert "host update failed" not in world.logged(), world.logged()
    received = world.kubelet.resource(RESOURCE).messages - messages
    assert received == 1, f"{received} lists instead of one: {world.logged()[-900:]}"
    assert phones.mounted() == before


async def served(world: World, runtime: str) -> None:
    """A container has its phone at Android's paths and is manager of each; so is the next one, in the same binderfs."""
    before = phones.mounted()
    for tenant in ("first", "second"):
        container = await world.started(f"{tenant}-{runtime}")
        expected = phones.whole(phone_of(container)) | phones.sealed()
        await check(runtime, container, expected, probe=world.probe)
        await world.finish()
    assert phones.mounted() == before


async def restarted(world: World) -> None:
    """The plugin ends, --remove takes all phones but that of a running container; the command restores them."""
    before = phones.mounted()
    container = await world.started("running")
    holding = {f"manage /dev/{name}": "ok" for name in NAMES} | {"await /go": "ok"}
    holding |= {"manage /dev/binderfs/binder": "EBUSY"}
    running = await start("runc", container, holding, probe=world.probe)
    await until(lambda: is_open(path(phone_of(container), "vndbinder")), "the container runs")
    await world.stop_plugin()
    removed = await run(sys.executable, "-m", "aosp_plugin", "provision", "--remove", "--config", str(CONFIGURATION))
    kept = phone_of(container)
    assert (removed.code, phones.mounted()) == (3, {kept: before[kept]}), f"{removed}"
    assert f'"added": {COUNT - 1}' in await _provision()
    await world.start_again(wrapper=UNPRIVILEGED)
    await world.healthy(COUNT)
    assert phones.mounted()[kept] == before[kept]
    assert is_open(path(kept, "vndbinder")), "the container has lost its manager"
    running.release()
    await running.end()
    await world.finish()


async def lost(world: World) -> None:
    """A phone that the host unmounts is unhealthy, and stays unmounted; the command, run again, makes it healthy."""
    free = phones.phones(COUNT)[-1]
    before = phones.mounted()
    assert (await run("umount", "--lazy", path(free))).code == 0
    await world.healthy(COUNT - 1, unhealthy=1)
    await until(lambda: "not-provisioned" in world.logged(), "the log has the reason")
    assert phones.mounted() == {phone: device for phone, device in before.items() if phone != free}
    assert '"added": 1' in await _provision()
    await world.healthy(COUNT)
    phones.require_whole(phones.phones(COUNT))


ITEMS: Final[list[Item[World]]] = [
    *(item(provisioned), item(without_rights)),
    *for_each_runtime(served, runtimes=["runc"]),
    *(item(restarted), item(lost), item(items_binderfs_phones.ended)),
]
