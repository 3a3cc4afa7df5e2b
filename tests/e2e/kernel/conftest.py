"""What the tests of a boot share, in its guest."""

import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from kubelet_standin import Kubelet
from tests.e2e.common.processes import run
from tests.e2e.common.waiting import until
from tests.e2e.kernel import boots, confinement, phones, pods, selinux, systemd
from tests.e2e.kernel.containers import RUNTIMES
from tests.e2e.kernel.world import COMPAT, DIRECTORY, World, make_reachable

_BOOT: Final = boots.CURRENT or boots.BOOTS["core"]
_VERSIONS: Final[dict[str, str]] = {}


def pytest_configure() -> None:
    """Refuse to run elsewhere than in a guest, and load the profiles of its containers."""
    if boots.CURRENT is None:
        raise pytest.UsageError("tests/e2e/kernel runs in guests of QEMU, which make test-kernel boots")
    if confinement.CONFINED:
        confinement.load()


def pytest_report_header() -> Iterator[str]:
    """Return which kernel, driver, cgroup version and runtimes the guest has, as they say themselves."""
    kernel = os.uname()
    debian = re.search(r" Debian (\S+)", kernel.version)
    yield f"# version Linux: {debian[1] if debian else kernel.release}"
    yield f"# version machine: {kernel.machine}"
    driver = "C" if os.path.exists("/sys/module/binder_linux") else "unknown"  # a module here, unlike that in Rust
    yield f"# version binder driver: {'Rust' if 'rust_binder' in Path('/proc/devices').read_text() else driver}"
    yield f"# version cgroup: {'v2' if os.path.exists('/sys/fs/cgroup/cgroup.controllers') else 'v1'}"
    if confinement.CONFINED:
        loaded = Path("/sys/kernel/security/apparmor/profiles").read_text().splitlines()
        yield f"# version AppArmor: {', '.join(sorted(loaded, reverse=True))}"
    if selinux.PART in _BOOT.parts:
        yield f"# version SELinux: {'enforcing' if selinux.enforced() else 'permissive'}"
    if _BOOT.systemd:
        yield f"# version systemd: {run('systemctl', '--version').split()[1]}"
    for runtime in () if "runtime" in _BOOT.parts else RUNTIMES:
        yield f"# version {runtime}: {run(runtime, '--version').split()[2]}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the versions of the kubelet and of its runtimes, if they ran."""
    for component, version in _VERSIONS.items():
        terminalreporter.write_line(f"# version {component}: {version}")


@pytest.fixture(scope="session")
async def shared_world() -> AsyncIterator[World]:
    """Return the stand-in kubelet and the plugin of a boot, for fixtures of modules."""
    DIRECTORY.mkdir()
    make_reachable(sys.executable)
    make_reachable(__file__)
    async with Kubelet(DIRECTORY / "kubelet") as kubelet:
        world = World(kubelet)
        yield world
        await world.stop()


@pytest.fixture
async def world(shared_world: World) -> AsyncIterator[World]:
    """Return the same; the pods of a test end with it."""
    yield shared_world
    await shared_world.finish_all()


@pytest.fixture(params=RUNTIMES[:1] if _BOOT.core else RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    """Return the name of a container runtime."""
    return str(request.param)


@pytest.fixture(params=("", COMPAT), ids=("64-bit", "32-bit"))
def bits(request: pytest.FixtureRequest) -> str:
    """Return what the name of a part ends with whose program runs in a container."""
    return str(request.param)


@pytest.fixture(scope="module")
async def phones_unmounted(shared_world: World) -> AsyncIterator[None]:
    """Check that when the plugin ends, all phones stay mounted, and that the host can unmount them."""
    assert not os.path.exists(phones.DIRECTORY)
    yield
    wanted = phones.mounted().keys()
    await shared_world.stop()
    assert phones.mounted().keys() == wanted
    phones.unmount_all()


@pytest.fixture(scope="module")
async def four_phones(phones_unmounted: None, shared_world: World) -> None:
    """Serve 4 phones with a binderfs each, on a host that has none before."""
    await shared_world.serve_with(f"phones: {{count: {phones.COUNT}}}\n", resource=phones.RESOURCE)
    await shared_world.healthy(phones.COUNT)
    phones.require_whole(phones.phones(phones.COUNT))


@pytest.fixture(scope="session")
def host() -> pods.Host:
    """Return a real kubelet and its runtime."""
    if _BOOT.systemd:
        until(systemd.is_up, "systemd is up")
    host = pods.start_host(systemd=_BOOT.systemd)
    _VERSIONS.update(host.runtime.versions | {"kubelet": host.kubelet.version})
    return host
