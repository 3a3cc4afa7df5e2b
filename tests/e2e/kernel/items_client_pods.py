"""Items: binder software of others in pods of a real kubelet, containerd and runc, with phones of both kinds.

The plugin is a process of the guest. ``tenants`` says what runs in the pods.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.kernel import tenants
from tests.e2e.kernel.item import Item, sentence
from tests.e2e.kernel.items_clients import RESOURCE
from tests.e2e.kernel.tenants import APP, USERS, Kind, phone_command
from tests.e2e.kubelet.archive import busybox_image
from tests.e2e.kubelet.node import Node
from tests.e2e.kubelet.plugins import AsProcess
from tests.e2e.kubelet.pods import LOGS, container
from tests.e2e.kubelet.runtime import Runtime
from tests.e2e.kubelet.standalone import Standalone
from tests.e2e.kubelet.waiting import PATIENCE, until

if TYPE_CHECKING:
    from tests.e2e.kubelet.node import Placed

WORK: Final = Path("/run/e2e-clients")
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
        return printed(self.pod.pod["metadata"]["uid"])

    def restart(self, user: str) -> None:
        """Kill the container's first process; in the next container another user is the service manager."""
        _user_of(self.name).write_text(user)
        self.pod.restart_container()


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

    def place(self, kind: Kind, name: str, user: str, **more: Any) -> PodPhone:
        """Create a pod with a phone."""
        _user_of(name).parent.mkdir(exist_ok=True)
        _user_of(name).write_text(user)
        script = f"exec {' '.join(phone_command(kind, name))} $($box cat /state/user)"
        mounts = [{"name": "state", "mountPath": "/state"}]
        main = container("main", 1, resource=RESOURCE, then=script, volumeMounts=mounts, **more)
        volume = {"name": "state", "hostPath": {"path": str(_user_of(name).parent), "type": "Directory"}}
        phone = PodPhone(name, self.node, self.node.place(main, name=name, volumes=[volume]))
        self.phones[name] = phone
        return phone

    def remove(self, *names: str) -> None:
        """Delete pods."""
        self.node.remove(*(self.phones.pop(name).pod for name in names))

    def clear(self) -> None:
        """Delete all pods, and stop the plugin."""
        self.remove(*list(self.phones))
        if self.plugin.running():
            self.node.stop_plugin()


def printed(uid: str) -> list[str]:
    """Return what the last run of a pod's container ``main`` has printed after its report about itself."""
    logs = sorted(LOGS.glob(f"*_{uid}/main/*.log"), key=lambda path: int(path.stem))
    lines = [line.split(" ", 3)[-1] for line in logs[-1].read_text().splitlines()]
    return lines[lines.index("--- end") + 1 :]


def _user_of(name: str) -> Path:
    return WORK / f"state-{name}" / "user"


def start(kubelet_binary: Path, *parts: Path, oci_runtime: str = "runc") -> World:
    """Start containerd and a kubelet, and load the image; the first item starts the plugin."""
    directory = WORK / oci_runtime
    directory.mkdir(parents=True)
    tenants.assemble(directory / "root", *parts)
    runtime = Runtime(directory / "runtime", oci_runtime=oci_runtime)
    runtime.start()
    busybox_image(directory / "image.tar", tree=directory / "root")
    runtime.load(directory / "image.tar")
    kubelet = Standalone(kubelet_binary, directory / "kubelet", runtime.socket)
    kubelet.start()
    plugin = AsProcess(directory / "plugin", "", patience=PATIENCE)
    return World(Node(kubelet, runtime, plugin, resource=RESOURCE), plugin)


def works(world: World, kind: Kind) -> None:
    """In two pods rsb_hub and a service run; clients of rsbinder and libgbinder, another user, call only their own."""
    world.clear()  # after an item that failed
    tenants.new_devices(kind)
    world.serve(kind, "never")
    first, second = world.place(kind, FIRST, "system"), world.place(kind, SECOND, "system")
    for phone in (first, second):
        phone.pod.wait_phase("Running")
    tenants.works(kind, first, SECOND, USERS["system"])
    tenants.works(kind, second, FIRST, USERS["system"])


def refused(world: World, kind: Kind) -> None:
    """Counter-example: without recreation rsb_hub of another user gets EPERM when the container restarts: bad uid."""
    phone = world.phones[FIRST]
    tenants.mark_kernel_log(phone.name)
    phone.restart("shell")
    tenants.refused(kind, phone, USERS["shell"], USERS["system"])
    tenants.alone(kind, world.phones[SECOND])


def restarts(world: World, kind: Kind) -> None:
    """With recreate: on-start the container restarts once more, and the other user is its service manager."""
    world.serve(kind, "on-start")
    phone = world.phones[FIRST]
    phone.restart("shell")
    tenants.works(kind, phone, SECOND, USERS["shell"])
    tenants.alone(kind, world.phones[SECOND])


def next_pod(world: World, kind: Kind) -> None:
    """The next pod with the same phone runs as user 10000, which is its service manager."""
    held = world.phones[FIRST].pod.held()
    world.remove(FIRST)
    phone = world.place(kind, NEXT, "", securityContext={"runAsUser": APP, "runAsGroup": APP})
    phone.pod.wait_phase("Running")
    assert phone.pod.held() == held, f"{phone.pod.held()}, before: {held}"
    tenants.works(kind, phone, SECOND, APP)
    tenants.alone(kind, world.phones[SECOND])
    world.clear()


def _items(kind: Kind) -> list[Item[World]]:
    functions = (works, refused, restarts, next_pod)
    return [Item(f"pods, {kind.title}: {sentence(function)}", partial(function, kind=kind)) for function in functions]


ITEMS: Final[list[Item[World]]] = [*_items(tenants.FOUND), *_items(tenants.BINDERFS)]
