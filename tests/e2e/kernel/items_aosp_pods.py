"""Items: Android's own binder software in restricted pods of a real kubelet and containerd, with phones of both kinds.

The plugin is a process of the guest. ``aosp`` says what runs in the pods.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.common.report import say
from tests.e2e.kernel import aosp, tenants
from tests.e2e.kernel.aosp import APP, SHELL, SYSTEM
from tests.e2e.kernel.item import Item, sentence
from tests.e2e.kernel.items_clients import RESOURCE
from tests.e2e.kubelet.archive import busybox_image
from tests.e2e.kubelet.node import Node
from tests.e2e.kubelet.plugins import AsProcess
from tests.e2e.kubelet.pods import LOGS, container
from tests.e2e.kubelet.runtime import Runtime
from tests.e2e.kubelet.standalone import Standalone
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.kernel.tenants import Kind
    from tests.e2e.kubelet.node import Placed

WORK: Final = Path("/run/e2e-android")
FIRST, SECOND, NEXT = "phone-a", "phone-b", "phone-c"


@dataclass
class PodPhone:
    """A pod with a phone."""

    name: str
    node: Node
    pod: Placed

    def execute(self, user: int, *words: str) -> str:
        """Run a program in the container as a user, and return its output."""
        return self.node.runtime.execute(self.pod.container_id(), *words, user=f"{user}:{user}")

    def log(self) -> list[str]:
        """Return what the container's last run has printed after its report about itself."""
        uid = self.pod.pod["metadata"]["uid"]
        logs = sorted(LOGS.glob(f"*_{uid}/main/*.log"), key=lambda path: int(path.stem))
        lines = [line.split(" ", 3)[-1] for line in logs[-1].read_text().splitlines()]
        return lines[lines.index("--- end") + 1 :]


@dataclass
class World:
    """A node whose plugin is a process, and its pods."""

    node: Node
    plugin: AsProcess
    phones: dict[str, PodPhone] = field(default_factory=dict)

    def serve(self, kind: Kind, recreate: str) -> None:
        """Start the plugin, after stopping a running one, and wait until the kubelet has its 4 phones."""
        if self.plugin.running():
            self.node.stop_plugin()
        self.plugin.configure(f"version: v1\n{kind.configuration}recreate: {recreate}\n")
        self.plugin.start()
        until(lambda: len(self.node.kubelet.allocatable(RESOURCE)) == 4, "the kubelet has 4 phones")

    def place(self, name: str, user: int) -> PodPhone:
        """Create a pod with a phone, which the Pod Security Standard "restricted" admits."""
        then, context = f"exec {aosp.COMMAND} {name}", _restricted(user)
        main = container("main", 1, resource=RESOURCE, then=then, securityContext=context)
        phone = self.phones[name] = PodPhone(name, self.node, self.node.place(main, name=name))
        phone.pod.wait_phase("Running")
        return phone

    def remove(self, *names: str) -> None:
        """Delete pods."""
        self.node.remove(*(self.phones.pop(name).pod for name in names))

    def clear(self) -> None:
        """Delete all pods, and stop the plugin."""
        self.remove(*list(self.phones))
        if self.plugin.running():
            self.node.stop_plugin()


def _restricted(user: int) -> dict[str, Any]:
    return {
        "runAsUser": user,
        "runAsGroup": user,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def start(kubelet_binary: Path, android: Path) -> World:
    """Start containerd and a kubelet, and load the image; the first item starts the plugin."""
    WORK.mkdir()
    tenants.assemble(WORK / "root", android)
    runtime = Runtime(WORK / "runtime")
    runtime.start()
    busybox_image(WORK / "image.tar", tree=WORK / "root")
    runtime.load(WORK / "image.tar")
    kubelet = Standalone(kubelet_binary, WORK / "kubelet", runtime.socket)
    kubelet.start()
    plugin = AsProcess(WORK / "plugin", "", patience=PATIENCE)
    return World(Node(kubelet, runtime, plugin, resource=RESOURCE), plugin)


def works(world: World, kind: Kind) -> None:
    """In two restricted pods Android's service managers run as users 1000 and 2000; its tools find only their own."""
    world.clear()  # after an item that failed
    tenants.new_devices(kind)
    world.serve(kind, "never")
    first, second = world.place(FIRST, SYSTEM), world.place(SECOND, SHELL)
    say(f"manifest: {json.dumps(first.pod.manifest['spec'])}")
    aosp.works(first, SECOND)
    aosp.works(second, FIRST)


def tests(world: World) -> None:
    """Android's tests pass in a pod, except for those that cannot pass in an unprivileged container."""
    aosp.run_tests(world.phones[FIRST])


def apart(world: World) -> None:
    """A service dies, and its manager drops it; the manager dies, and clients of the other pod notice nothing."""
    aosp.apart(world.phones[FIRST], world.phones[SECOND])


def refused(world: World) -> None:
    """Counter-example: without recreation the service managers of the next pod's user abort; bad uid."""
    held = world.phones[FIRST].pod.held()
    world.remove(FIRST)
    tenants.mark_kernel_log(NEXT)
    phone = world.place(NEXT, APP)
    assert phone.pod.held() == held, f"{phone.pod.held()}, before: {held}"
    aosp.aborted(phone, APP, SYSTEM)


def next_pod(world: World, kind: Kind) -> None:
    """With recreate: on-start the pod's container restarts, and the other user's managers and service work."""
    world.serve(kind, "on-start")
    phone = world.phones[NEXT]
    phone.pod.restart_container()
    aosp.works(phone, SECOND)
    aosp.works(world.phones[SECOND], NEXT)


def _items(kind: Kind) -> list[Item[World]]:
    def named(function: Callable[..., None], **more: object) -> Item[World]:
        return Item(f"pods, {kind.title}: {sentence(function)}", partial(function, **more))

    return [named(works, kind=kind), named(tests), named(apart), named(refused), named(next_pod, kind=kind)]


ITEMS: Final[list[Item[World]]] = [*_items(tenants.FOUND), *_items(tenants.BINDERFS)]
