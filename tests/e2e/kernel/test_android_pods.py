"""Android's own binder software in pods that the Pod Security Standard "restricted" admits, under a real kubelet.

The provisioner beside a plugin without privileges mounts a binderfs for each pod's phone.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.common.images import tree_image
from tests.e2e.kernel import aosp, phones, selinux
from tests.e2e.kernel.pods import WORK, Host, PodWorld, deployed
from tests.e2e.kernel.world import part
from tests.e2e.kubelet.node import Placed
from tests.e2e.kubelet.pods import LOGS, container
from tests.e2e.kubelet.standalone import NODE

_FILES: Final = WORK / "phone"
_IMAGE: Final = WORK / "phone.tar"


class PodPhone:
    """A pod in which service managers and a service with its name run."""

    def __init__(self, host: Host, pod: Placed) -> None:
        self.host = host
        self.pod = pod
        self.name = f"{pod.name}-{NODE}"
        """As the kubelet names static pods."""

    def execute(self, user: int, *words: str) -> str:
        """Run a program in the container as a user, and return its output."""
        return self.host.runtime.execute(self.pod.container_id(), *words, user=f"{user}:{user}", seconds=600)

    def log(self) -> list[str]:
        """Return what the container's last run has printed after its report about itself."""
        logs = LOGS.glob(f"*_{self.pod.pod['metadata']['uid']}/main/*.log")
        lines = max(logs, key=lambda path: int(path.stem)).read_text().splitlines()
        texts = [line.split(" ", 3)[3] for line in lines]
        return texts[texts.index("--- end") + 1 :]


@pytest.fixture(scope="module")
def world(host: Host) -> PodWorld:
    """Serve four phones, as deploy/provision does; or deploy/privileged, if SELinux confines what is not privileged."""
    variant = "provision"
    if selinux.enforced():
        selinux.load(selinux.ALLOWED)
        variant = "privileged"
    return deployed(host, variant, set(phones.phones(phones.COUNT)))


@pytest.fixture(scope="module")
def running(host: Host, world: PodWorld) -> Iterator[tuple[PodPhone, PodPhone]]:
    """Run two restricted pods with a phone each."""
    aosp.prepare(_FILES, part("android"))
    tree_image(_IMAGE, _FILES)
    host.runtime.load(_IMAGE)
    main = container("main", 1, then=aosp.SCRIPT, resource=phones.RESOURCE, securityContext=aosp.RESTRICTED)
    first, second = (PodPhone(host, world.node.place(main, name=name)) for name in ("android-a", "android-b"))
    for phone in (first, second):
        phone.pod.wait_phase("Running")
        phone.pod.view()
    yield first, second
    world.node.remove(first.pod, second.pod)


def test_works(host: Host, running: tuple[PodPhone, PodPhone]) -> None:
    """Service managers of two pods without rights serve tools, which find nothing of the other pod."""
    first, second = running
    status = host.runtime.process_status(first.pod.container_id())
    rights = {name: status[name] for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}
    assert rights == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    aosp.works(first, second.name)
    aosp.works(second, first.name)
    if selinux.enforced():
        kind, _ = selinux.context(host.runtime.oci_state(first.pod.container_id())["pid"])
        assert kind == "container_t"


def test_restarted(running: tuple[PodPhone, PodPhone]) -> None:
    """A container that restarts has a fresh binderfs, in which new managers start; the other pod's service stays."""
    first, second = running
    before = phones.mounted()
    first.pod.restart_container()
    first.pod.view()
    after = phones.mounted()
    assert {phone for phone in after if after[phone] != before[phone]} == first.pod.held(resource=phones.RESOURCE)
    aosp.works(first, second.name)
    aosp.alone(second)


def test_driver_tests(running: tuple[PodPhone, PodPhone]) -> None:
    """Android's tests of the driver's interface and of a caller's security context pass in a pod."""
    aosp.run_tests(running[0], aosp.QUICK)


def test_all_tests(running: tuple[PodPhone, PodPhone]) -> None:
    """All of Android's tests have the outcomes in a pod that they have in a container."""
    aosp.run_tests(running[0])
