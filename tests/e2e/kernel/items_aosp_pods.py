"""Items: Android's own binder software in restricted pods of a real kubelet and containerd, with phones of both kinds.

The plugin is a process of the guest. ``aosp`` says what runs in the pods.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from aosp_plugin.binder.driver import binderfs
from tests.e2e.kernel import aosp, tenants
from tests.e2e.kernel.aosp import APP, SHELL, SYSTEM
from tests.e2e.kernel.item import Item, sentence
from tests.e2e.kernel.items_client_pods import FIRST, NEXT, SECOND, PodPhone, World
from tests.e2e.kernel.items_clients import RESOURCE
from tests.e2e.kernel.phones import NAMES
from tests.e2e.kernel.tenants import say
from tests.e2e.kubelet.pods import container
from tests.e2e.kubelet.processes import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.e2e.kernel.tenants import Kind, Phone

UNFILTERED: Final = "phone-d"
_ROUNDS: Final = 3
_CGROUPS: Final = Path("/sys/fs/cgroup")


class Phones(Protocol):
    """What has the pods of the items."""

    @property
    def phones(self) -> Mapping[str, Phone]:
        """The pods by name."""


def restricted(user: int, seccomp: str = "RuntimeDefault") -> dict[str, Any]:
    """Return the security context that the Pod Security Standard "restricted" requires, with RuntimeDefault."""
    return {
        "runAsUser": user,
        "runAsGroup": user,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": seccomp},
    }


def _place(world: World, name: str, user: int, seccomp: str = "RuntimeDefault") -> PodPhone:
    """Create a pod with a phone."""
    main = container(
        "main", 1, resource=RESOURCE, then=f"exec {aosp.COMMAND} {name}", securityContext=restricted(user, seccomp)
    )
    phone = PodPhone(name, world.node, world.node.place(main, name=name))
    world.phones[name] = phone
    phone.pod.wait_phase("Running")
    return phone


def works(world: World, kind: Kind) -> None:
    """In two restricted pods Android's service managers run as users 1000 and 2000; its tools find only their own."""
    world.clear()  # after an item that failed
    tenants.new_devices(kind)
    world.serve(kind, "never")
    first, second = _place(world, FIRST, SYSTEM), _place(world, SECOND, SHELL)
    say(f"manifest: {json.dumps(first.pod.manifest['spec'])}")
    aosp.works(first, SECOND)
    aosp.works(second, FIRST)


def tests(world: Phones) -> None:
    """Android's tests pass in a pod, except for those that cannot pass in an unprivileged container."""
    aosp.run_tests(world.phones[FIRST])


def apart(world: Phones) -> None:
    """A service dies, and its manager drops it; the manager dies, and clients of the other pod notice nothing."""
    aosp.apart(world.phones[FIRST], world.phones[SECOND])


def restarts(world: World) -> None:
    """Without recreation the container restarts, and the same user's managers and service are back."""
    world.phones[FIRST].pod.restart_container()
    aosp.works(world.phones[FIRST], SECOND)


def refused(world: World) -> None:
    """Counter-example: without recreation the service managers of the next pod's user abort; bad uid."""
    held = world.phones[FIRST].pod.held()
    world.remove(FIRST)
    tenants.mark_kernel_log(NEXT)
    phone = _place(world, NEXT, APP)
    assert phone.pod.held() == held, f"{phone.pod.held()}, before: {held}"
    aosp.aborted(phone, APP, SYSTEM)


def next_pod(world: World, kind: Kind) -> None:
    """With recreate: on-start the pod's container restarts, and the other user's managers and service work."""
    world.serve(kind, "on-start")
    phone = world.phones[NEXT]
    phone.pod.restart_container()
    aosp.works(phone, SECOND)
    aosp.works(world.phones[SECOND], NEXT)


def load(world: World) -> None:
    """Under load, both sides in a pod, with and without a seccomp filter, and on the host's own binderfs, in turns.

    The host's program runs in the root cgroup, and then in one as deep as that of the pod.
    """
    unfiltered = _place(world, UNFILTERED, APP, seccomp="Unconfined")
    aosp.registered(unfiltered)
    work = Path(world.node.runtime.socket).parents[1]
    root = work / "root"  # of the pods' image
    with _host_manager(root, work / "binderfs"):
        phones: dict[str, Phone] = {
            "pod": world.phones[NEXT],
            "pod without seccomp filter": unfiltered,
            "host": _Host("host", root, _CGROUPS),
            "host, in a cgroup as deep": _Host("host", root, _cgroup_as_deep(unfiltered)),
        }
        rounds = [[aosp.throughput(phone) for phone in phones.values()] for _ in range(_ROUNDS)]
    for name, found in zip(phones, zip(*rounds, strict=True), strict=True):
        say(f"transactions per second, {name}: {', '.join(f'{value:.0f}' for value in found)}")
    world.clear()


@contextlib.contextmanager
def _host_manager(root: Path, directory: Path) -> Iterator[None]:
    """Run Android's service manager on a binderfs of the host, without a container; ``directory`` is a mount point."""
    directory.mkdir(exist_ok=True)
    binderfs.mount(str(directory))
    for name in NAMES:
        binderfs.add_device(str(directory), name)
        (directory / name).chmod(0o666)
    devices = [*(directory / name for name in NAMES), Path("/dev/null")]
    for device in devices:
        (root / "dev" / device.name).touch()
        run("mount", "--bind", str(device), str(root / "dev" / device.name))
    manager = subprocess.Popen(_chroot(root, SYSTEM, "/system/bin/servicemanager"))
    try:
        yield
    finally:
        manager.kill()
        manager.wait()
        for device in devices:
            run("umount", "--lazy", str(root / "dev" / device.name))
        binderfs.unmount(str(directory), lazy=True)


@dataclass
class _Host:
    """Programs of the host beside that service manager, in a cgroup."""

    name: str
    root: Path
    cgroup: Path

    def execute(self, user: int, *words: str) -> str:
        """Run a program as a user, and return its output."""
        script = f'echo $$ > {self.cgroup}/cgroup.procs && exec "$@"'
        return run("/bin/sh", "-c", script, "sh", *_chroot(self.root, user, *words), seconds=600)

    def log(self) -> list[str]:
        """Return nothing: the service manager prints to the guest's console."""
        return []


def _chroot(root: Path, user: int, *words: str) -> tuple[str, ...]:
    return ("chroot", f"--userspec={user}:{user}", str(root), *words)


def _cgroup_as_deep(phone: PodPhone) -> Path:
    """Create a cgroup that is as deep as that of a pod's container, with the same controllers at each level."""
    below = next(_CGROUPS.rglob(f"*{phone.pod.container_id()}*")).relative_to(_CGROUPS)
    cgroup = _CGROUPS
    for number in range(len(below.parts)):
        enabled = (_CGROUPS.joinpath(*below.parts[:number]) / "cgroup.subtree_control").read_text().split()
        (cgroup / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in enabled))
        cgroup /= f"host-{number}"
        cgroup.mkdir(exist_ok=True)
    return cgroup


def ended(world: World) -> None:
    """Pods, plugin, kubelet and containerd end."""
    world.clear()
    world.node.kubelet.stop()
    world.node.runtime.stop()
    tenants.remove_devices()


def items(oci_runtime: str) -> list[Item[World]]:
    """Return the items with a container runtime."""

    def named(function: Callable[..., None], title: str = "", **more: object) -> Item[World]:
        return Item(f"pods, {oci_runtime}{title}: {sentence(function)}", partial(function, **more))

    def of(kind: Kind) -> list[Item[World]]:
        title = f", {kind.title}"
        return [
            named(works, title, kind=kind),
            *(named(function, title) for function in (tests, apart, restarts, refused)),
            named(next_pod, title, kind=kind),
            named(load, title),
        ]

    return [*of(tenants.FOUND), *of(tenants.BINDERFS), named(ended)]
