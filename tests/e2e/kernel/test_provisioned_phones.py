"""Phones that `aosp-plugin provision` mounts, and a plugin without any capability that serves them."""

import sys
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.kernel import phones
from tests.e2e.kernel.containers import HOLDING, check, start
from tests.e2e.kernel.phones import COUNT, RESOURCE, path, phone_of
from tests.e2e.kernel.world import CONFIGURATION, World, checked, run, until

TEXT: Final = f"log_format: json\nphones: {{count: {COUNT}}}\n"
SERVED: Final = f"{TEXT}provisioned_by: command\n"
UNPRIVILEGED: Final = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
"""Runs a command as root without capabilities, like the container of deploy/provision."""


_COMMAND: Final = (sys.executable, "-m", "aosp_plugin", "provision", "--config", str(CONFIGURATION))
"""What the init container runs."""

pytestmark = pytest.mark.usefixtures("phones_unmounted")


@pytest.fixture(scope="module")
async def plugin(shared_world: World) -> None:
    """Serve phones that the command mounts, without any capability."""
    shared_world.configure(TEXT)
    await _provision()
    await shared_world.serve_with(SERVED, resource=RESOURCE, wrapper=UNPRIVILEGED)
    await shared_world.healthy(COUNT)


async def test_provisioned(world: World) -> None:
    """`aosp-plugin provision` mounts 4 whole phones; a second call keeps them; without capabilities it mounts none."""
    world.configure(TEXT)
    refused = await run(*UNPRIVILEGED, *_COMMAND)
    assert (refused.code, phones.mounted()) == (1, {}), f"{refused}"
    assert "requires CAP_SYS_ADMIN" in refused.err, refused.err
    log = await _provision()
    assert f'"ordered": {COUNT}, "added": {COUNT}' in log, log
    phones.require_whole(phones.phones(COUNT))
    before = phones.mounted()
    log = await _provision()
    assert '"added": 0' in log, log
    assert phones.mounted() == before


@pytest.mark.usefixtures("plugin")
async def test_without_rights(world: World) -> None:
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


@pytest.mark.usefixtures("plugin")
async def test_served(world: World) -> None:
    """A container has its phone at Android's paths and is manager of each; so is the next one, in the same binderfs."""
    before = phones.mounted()
    for tenant in ("first", "second"):
        container = await world.started(tenant)
        expected = phones.whole(phone_of(container)) | phones.sealed()
        await check("runc", container, expected)
        await world.finish()
    assert phones.mounted() == before


@pytest.mark.usefixtures("plugin")
async def test_restarted(world: World) -> None:
    """The plugin ends, --remove takes all phones but that of a running container; the command restores them."""
    before = phones.mounted()
    container = await world.started("running")
    running = await start("runc", container, {**phones.MANAGED, **HOLDING, "manage /dev/binderfs/binder": "EBUSY"})
    await running.is_up()
    await world.stop_plugin()
    removed = await run(*_COMMAND, "--remove")
    kept = phone_of(container)
    assert (removed.code, phones.mounted()) == (3, {kept: before[kept]}), f"{removed}"
    assert f'"added": {COUNT - 1}' in await _provision()
    await world.start_again(wrapper=UNPRIVILEGED)
    await world.healthy(COUNT)
    assert phones.mounted()[kept] == before[kept]
    await running.end()


@pytest.mark.usefixtures("plugin")
async def test_lost(world: World) -> None:
    """A phone that the host unmounts is unhealthy, and stays unmounted; the command, run again, makes it healthy."""
    free = phones.phones(COUNT)[-1]
    before = phones.mounted()
    await checked("umount", "--lazy", path(free))
    await world.healthy(COUNT - 1, unhealthy=1)
    await until(lambda: "not-provisioned" in world.logged(), "the log has the reason")
    assert phones.mounted() == {phone: device for phone, device in before.items() if phone != free}
    assert '"added": 1' in await _provision()
    await world.healthy(COUNT)
    phones.require_whole(phones.phones(COUNT))


async def _provision() -> str:
    """Run the command, and return its log."""
    return await checked(*_COMMAND)
