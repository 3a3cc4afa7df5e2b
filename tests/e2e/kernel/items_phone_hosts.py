"""Items: what happens to phones with a binderfs each on the host: unmounts, other mounts, restarts, a reboot."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from aosp_plugin.binder.driver import binderfs
from kubelet_standin import AdmissionError, Container, Pod
from kubelet_standin.podresources_server import PodResources
from tests.e2e.kernel import items_binderfs_phones, phones
from tests.e2e.kernel.containers import check
from tests.e2e.kernel.item import Item, item
from tests.e2e.kernel.items_binderfs_phones import COUNT
from tests.e2e.kernel.phones import RESOURCE, path, phone_of
from tests.e2e.kernel.world import run, until

if TYPE_CHECKING:
    from tests.e2e.kernel.world import World

_POD_RESOURCES: Final = "/var/lib/kubelet/pod-resources/kubelet.sock"
"""Where the plugin asks which phones are allocated."""


async def unmounted(world: World) -> None:
    """The host unmounts a phone: the plugin mounts one again; it is healthy without SIGHUP, and a tenant starts."""
    for words in (("umount",), ("umount", "--lazy")):
        before = phones.mounted()
        done = await run(*words, path("phone0"))
        assert done.code == 0, done
        await until(lambda: len(phones.mounted()) == COUNT, "the phone is mounted again")
        await world.healthy(COUNT)
        after = phones.mounted()
        changed = {phone for phone in before if after[phone] != before[phone]}
        assert changed <= {"phone0"}, f"mounted again: {changed}"
    await _starts(world, "after-unmount", "phone0")


async def unmounted_all(world: World) -> None:
    """The host unmounts all phones at once: all are mounted again, and are healthy without SIGHUP."""
    done = await run("umount", *map(path, phones.phones(COUNT)))
    assert done.code == 0, done
    await until(lambda: len(phones.mounted()) == COUNT, "all phones are mounted again")
    await world.healthy(COUNT)
    phones.require_whole(phones.phones(COUNT))


async def foreign_mount(world: World) -> None:
    """A tmpfs or a binderfs with logs over a phone: foreign-mount, and never allocated; unmounted again: healthy."""
    before = phones.mounted()
    tmpfs = await run("mount", "-t", "tmpfs", "tmpfs", path("phone0"))
    logs = await run("mount", "-t", "binder", "-o", "stats=global", "binder", path("phone1"))
    assert (tmpfs.code, logs.code) == (0, 0), f"{tmpfs} {logs}"
    assert os.path.exists(path("phone1", "binder_logs"))
    await world.healthy(COUNT - 2, unhealthy=2)
    await until(lambda: "foreign-mount:2" in world.logged(), "the reason is logged")
    allocated = [phone_of(await world.started(f"beside-foreign-{number}")) for number in range(COUNT - 2)]
    assert sorted(allocated) == ["phone2", "phone3"], allocated
    try:
        await world.started("too-many")
    except AdmissionError:
        pass
    else:
        raise AssertionError("a foreign mount was allocated")
    assert os.path.exists(path("phone1", "binder_logs")), "the foreign mount is gone"
    for phone in ("phone0", "phone1"):
        done = await run("umount", path(phone))
        assert done.code == 0, done
    await world.healthy(COUNT)
    for _ in allocated:
        await world.finish()
    assert phones.mounted()["phone0"] == before["phone0"], "the covered binderfs was replaced"
    phones.require_whole(phones.phones(COUNT))


async def files_removed(world: World) -> None:
    """The host removes a device, adds one and changes a mode: the next container has three devices of mode 0666."""
    binderfs.remove_device(path("phone0"), "hwbinder")
    binderfs.add_device(path("phone0"), "extra")
    os.chmod(path("phone0", "vndbinder"), 0)
    await until(lambda: os.path.lexists(path("phone0", "hwbinder")), "the plugin restores the device")
    await world.healthy(COUNT)
    await _starts(world, "after-removal", "phone0")


async def restarted(world: World) -> None:
    """A plugin that restarts finds all phones again: the same mounts and no others; all are healthy."""
    before, files = phones.mounted(), phones.inodes(phones.phones(COUNT))
    await world.stop()
    assert phones.mounted() == before
    await world.start_again()
    await world.healthy(COUNT)
    assert phones.mounted() == before
    assert phones.inodes(phones.phones(COUNT)) == files


async def rebooted(world: World) -> None:
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
    assert phone_of(again) == phone_of(container), f"{again.device_ids} {container.device_ids}"
    await check("runc", again, phones.whole(phone_of(again)) | phones.sealed(), probe=world.probe)
    await world.finish()


async def raised(world: World) -> None:
    """A count that is raised at SIGHUP adds phones, and those in place stay mounted."""
    before = phones.mounted()
    world.configure(f"phones: {{count: {COUNT + 2}}}\n")
    await world.reload()
    await world.healthy(COUNT + 2)
    phones.require_whole(phones.phones(COUNT + 2))
    after = phones.mounted()
    assert {phone: after[phone] for phone in before} == before


async def lowered(world: World) -> None:
    """A count that is lowered removes free phones only: one in use stays mounted and works until its pod ends."""
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


async def _starts(world: World, name: str, phone: str) -> None:
    """Check that a container starts with this phone, whole."""
    container = await world.started(name)
    assert phone_of(container) == phone, f"{phone_of(container)}, not {phone}"
    phones.require_whole(phones.phones(COUNT))
    await check("runc", container, phones.whole(phone) | phones.sealed(), probe=world.probe)
    await world.finish()


ITEMS: Final[list[Item[World]]] = [
    item(function)
    for function in (
        *(items_binderfs_phones.unprepared, unmounted, unmounted_all, foreign_mount, files_removed),
        *(restarted, rebooted, raised, lowered, items_binderfs_phones.ended),
    )
]
