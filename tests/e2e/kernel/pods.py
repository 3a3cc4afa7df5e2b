"""In the guest: a real kubelet with a container runtime, whose pods have the probe, and the plugin as a pod."""

import os
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.e2e.common.images import busybox_image
from tests.e2e.common.waiting import until
from tests.e2e.deploy.manifests import configurations, kustomized, the
from tests.e2e.kernel import selinux
from tests.e2e.kernel.operations import compare, words
from tests.e2e.kernel.phones import RESOURCE
from tests.e2e.kernel.world import part, variable
from tests.e2e.kubelet import sandbox
from tests.e2e.kubelet.crio import ContainerRuntime, container_runtime
from tests.e2e.kubelet.node import Node, Placed
from tests.e2e.kubelet.plugins import AsPod
from tests.e2e.kubelet.standalone import Standalone

WORK: Final = Path("/run/e2e-pods")


class Host(NamedTuple):
    """A kubelet and its container runtime."""

    kubelet: Standalone
    runtime: ContainerRuntime


@dataclass
class PodWorld:
    """A node whose plugin is a pod."""

    node: Node

    @property
    def plugin(self) -> AsPod:
        """The plugin."""
        assert isinstance(self.node.plugin, AsPod)
        return self.node.plugin

    def tries(self, pod: Placed, expected: dict[str, str]) -> None:
        """Try operations inside the pod's container, and check the results."""
        compare(expected, self.node.runtime.execute(pod.container_id(), "/bin/probe", *words(expected)))

    def hold(self, pod: Placed, name: str) -> None:
        """Start a process in the pod that becomes and stays the context manager of a device."""
        container_id = pod.container_id()
        self.node.runtime.execute(container_id, "/bin/probe", *words([f"manage /dev/{name}", "wait"]), detach=True)
        until(lambda: self.is_held(pod, name), f"{name} has a context manager")

    def is_held(self, pod: Placed, name: str) -> bool:
        """Return whether a device has a context manager, as seen by another process of the pod."""
        printed = self.node.runtime.execute(pod.container_id(), "/bin/probe", "manage", f"/dev/{name}")
        assert printed.strip() in {"ok", "EBUSY"}, printed
        return printed.strip() == "EBUSY"


def start_host(*, systemd: bool, **settings: Any) -> Host:
    """Start the runtime of ``--runtime`` and a kubelet, and load the images.

    ``systemd`` is whether systemd makes the cgroups; ``settings`` are those of the kubelet.
    """
    # systemd's sockets are in /run.
    sandbox.set_up((*(() if systemd else ("/run",)), "/var/log", "/var/lib/kubelet", "/var/lib/cni"))
    WORK.mkdir()
    selinux.label(WORK)
    runtime = container_runtime(WORK / "runtime", *os.environ[variable("runtime")].split(":"), systemd=systemd)
    runtime.start()
    busybox_image(WORK / "busybox.tar", part("probe"))
    runtime.load(WORK / "busybox.tar")
    runtime.load(part("image"))
    more = {"cgroupDriver": "systemd", "cgroupsPerQOS": True} if systemd else {}
    kubelet = Standalone(part("kubelet"), WORK / "kubelet", runtime.socket, **more, **settings)
    kubelet.start()
    return Host(kubelet, runtime)


def deployed(host: Host, name: str, devices: AbstractSet[str], *, on: str = "") -> PodWorld:
    """Start the plugin as deploy/NAME configures it, with these phones, and wait until they are allocatable.

    ``on`` is the node's name for the plugin. With another one than the kubelet's, it takes static pods for others.
    """
    manifests = kustomized(str(part("kustomize")), name)
    directory = WORK / name
    directory.mkdir(exist_ok=True)
    plugin = AsPod(directory, *host, the("DaemonSet", manifests))
    if on:
        (container,) = plugin.manifest["spec"]["containers"]
        container["env"] = [each for each in container["env"] if each["name"] != "NODE_NAME"]
        container["env"].append({"name": "NODE_NAME", "value": on})
    plugin.configure(configurations(manifests)[0].replace("count: 120", f"count: {len(devices)}"))
    node = Node(*host, plugin, resource=RESOURCE, devices=devices, each=1)
    plugin.start()
    node.wait_allocatable(devices)
    return PodWorld(node)


def phone_of(pod: Placed) -> str:
    """Return the phone of a pod's container."""
    (phone,) = pod.held()
    return phone
