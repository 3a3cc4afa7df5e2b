"""What happens to phones with a binderfs each on the host: unmounts, other mounts, restarts, a reboot."""

import os
from pathlib import Path
from typing import Final

import pytest

from kubelet_standin import AdmissionError, Container, Pod, PodResources
from tests.e2e.kernel import phones
from tests.e2e.kernel.containers import check
from tests.e2e.kernel.phones import COUNT, DIRECTORY, RESOURCE, path, phone_of
from tests.e2e.kernel.world import World, checked, until

pytestmark = pytest.mark.usefixtures("four_phones")

_TOO_MANY: Final = 40
_ROOM: Final = 20
"""The number of mounts that fs.mount-max leaves, with some that the mount table does not show."""
_MOUNT_MAX: Final = Path("/proc/sys/fs/mount-max")
_POD_RESOURCES: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
"""Where the plugin asks which phones are allocated."""


async def test_unmounted(world: World) -> None:
    """The host unmounts a phone: the plugin mounts one again; it is healthy without SIGHUP, and a tenant starts."""
    for words in (("umount",), ("umount", "--lazy")):
        before = phones.mounted()
        await checked(*words, path("phone0"))
        await until(lambda: len(phones.mounted()) == COUNT, "the phone is mounted again")
        await world.healthy(COUNT)
        after = phones.mounted()
        changed = {phone for phone in before if after[phone] != before[phone]}
        assert changed <= {"phone0"}, f"mounted again: {changed}"
    container = await world.started("after-unmount")
    assert phone_of(container) == "phone0"
    phones.require_whole(phones.phones(COUNT))
    await check("runc", container, phones.whole("phone0") | phones.sealed())


async def test_foreign_mount(world: World) -> None:
    """A tmpfs or a binderfs with logs over a phone: foreign-mount, and never allocated; unmounted again: healthy."""
    before = phones.mounted()
    await checked("mount", "-t", "tmpfs", "tmpfs", path("phone0"))
    await checked("mount", "-t", "binder", "-o", "stats=global", "binder", path("phone1"))
    assert os.path.exists(path("phone1", "binder_logs"))
    await world.healthy(COUNT - 2, unhealthy=2)
    await until(lambda: "foreign-mount:2" in world.logged(), "the reason is logged")
    allocated = [phone_of(await world.started(f"beside-foreign-{number}")) for number in range(COUNT - 2)]
    assert sorted(allocated) == ["phone2", "phone3"], allocated
    with pytest.raises(AdmissionError):
        await world.started("too-many")
    assert os.path.exists(path("phone1", "binder_logs")), "the foreign mount is gone"
    for phone in ("phone0", "phone1"):
        await checked("umount", path(phone))
    await world.healthy(COUNT)
    assert phones.mounted()["phone0"] == before["phone0"], "the covered binderfs was replaced"
    phones.require_whole(phones.phones(COUNT))


async def test_rebooted(world: World) -> None:
    """After a reboot, a pod of the kubelet's checkpoint has its phone again, in a fresh binderfs."""
    container = await world.started("survivor")
    pod = world.admitted[-1]
    await world.stop_plugin()
    await world.kubelet.stop()
    phones.unmount_all()
    await world.kubelet.start()
    await world.start_again()
    await world.healthy(COUNT)
    phones.require_whole(phones.phones(COUNT))
    await world.kubelet.admit(pod)
    again = await world.kubelet.start_container(pod, "survivor")
    assert phone_of(again) == phone_of(container)
    await check("runc", again, phones.whole(phone_of(again)) | phones.sealed())


async def _raise(world: World) -> None:
    """Have two more phones, by SIGHUP."""
    world.configure(f"phones: {{count: {COUNT + 2}}}\n")
    await world.reload()
    await world.healthy(COUNT + 2)


async def test_raised(world: World) -> None:
    """A count that is raised at SIGHUP adds phones, and those in place stay mounted."""
    before = phones.mounted()
    await _raise(world)
    phones.require_whole(phones.phones(COUNT + 2))
    after = phones.mounted()
    assert {phone: after[phone] for phone in before} == before


async def test_lowered(world: World) -> None:
    """A count that is lowered removes free phones only: one in use stays mounted and works until its pod ends."""
    await _raise(world)
    pods = [Pod(f"user-{number}", [Container("main", {RESOURCE: 1})]) for number in range(COUNT + 2)]
    allocated = {}
    for pod in pods:
        await world.kubelet.admit(pod)
        world.admitted.append(pod)
        allocated[phone_of(await world.kubelet.start_container(pod, "main"))] = pod
    last = f"phone{COUNT + 1}"
    for phone, pod in allocated.items():
        if phone != last:
            await world.kubelet.finish(pod)
            world.admitted.remove(pod)
    device = phones.mounted()[last]
    world.configure(f"phones: {{count: {COUNT}}}\n")
    os.makedirs(os.path.dirname(_POD_RESOURCES))
    async with PodResources(world.kubelet, _POD_RESOURCES):
        await world.reload()
        await until(lambda: f"phone{COUNT}" not in phones.mounted(), "the free phone is removed")
        assert phones.mounted().get(last) == device, "the phone in use was removed"
        assert not os.path.exists(path(f"phone{COUNT}"))
        await world.healthy(COUNT, unhealthy=1)
        await world.kubelet.finish(world.admitted.pop())
        await until(lambda: last not in phones.mounted(), "the phone is removed after the end of its pod")
        await world.healthy(COUNT)


async def test_no_room(world: World) -> None:
    """A count beyond fs.mount-max: the log names it; the phones that fit are whole, and nothing else is left."""
    limit = _MOUNT_MAX.read_text()
    _MOUNT_MAX.write_text(str(len(Path("/proc/self/mountinfo").read_text().splitlines()) + _ROOM))
    try:
        await world.serve_with(f"phones: {{count: {_TOO_MANY}}}\n", resource=RESOURCE)
        await until(lambda: "fs.mount-max" in world.logged(), "the limit is named")
        phones.require_whole(phones.mounted())
        assert 0 < len(phones.mounted()) < _TOO_MANY, f"{phones.mounted()}"
        # Each retry makes a directory, and removes it again.
        await until(lambda: sorted(os.listdir(DIRECTORY)) == sorted(phones.mounted()), "no directory is left")
    finally:
        _MOUNT_MAX.write_text(limit)
    await world.reload()
    await world.healthy(_TOO_MANY)
