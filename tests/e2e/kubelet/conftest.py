"""The node of a chapter's tests. ``python -m tests.e2e.kubelet`` runs pytest here, in a sandbox."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.e2e.common import sandboxed
from tests.e2e.common.images import busybox_image
from tests.e2e.common.processes import run
from tests.e2e.common.sandbox import CGROUPS, mount_memory, replace_dev, replace_sysctls
from tests.e2e.kubelet import chapters, sandbox, versions
from tests.e2e.kubelet.chapters import Chapter
from tests.e2e.kubelet.crio import ContainerRuntime, container_runtime
from tests.e2e.kubelet.managers import DeviceManager, real, stand_in
from tests.e2e.kubelet.node import Node, create_devices
from tests.e2e.kubelet.parts import Parts
from tests.e2e.kubelet.plugins import SHARED, AsPod, AsProcess
from tests.e2e.kubelet.runtimes import COMBINATIONS, WITH_CDI
from tests.e2e.kubelet.standalone import Standalone

Machine: TypeAlias = tuple[Standalone, ContainerRuntime, Path]
"""A running kubelet and runtime, and the directory for plugins' files."""

_VERSIONS: Final[dict[tuple[str, str], None]] = {}
"""The names and versions of the components that ran, in their order."""


def _parts(config: pytest.Config) -> Parts:
    parts: Parts = config.stash.get(sandboxed.GIVEN, Parts())
    return parts


def _chapters(config: pytest.Config) -> tuple[Chapter, ...]:
    return chapters.of(COMBINATIONS.get(_parts(config).runtime))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test by its chapters, and by the container runtime of each."""
    if "chapter_node" in metafunc.fixturenames:
        assert metafunc.function in chapters.ALL_TESTS, f"{metafunc.function.__name__} belongs to no chapter"
        runtime = _parts(metafunc.config).runtime
        parameters = [
            pytest.param(runtime or each.containerd, each, id=each.name, marks=each.marks(metafunc.function))
            for each in _chapters(metafunc.config)
            if metafunc.function in each.tests
        ]
        metafunc.parametrize(("machine", "chapter_node"), parameters, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Run one chapter after the other, each in its order. Skip tests that are about other kubelets."""
    sandboxed.require(config, "make test-kubelet PYTEST='-k NAME'")
    all_chapters, kubelet = _chapters(config), _parts(config).kubelet
    for item in items if kubelet else ():
        if reason := versions.missing(item, versions.minor(versions.of(kubelet))):
            item.add_marker(pytest.mark.skip(reason=reason))
    places = {
        item: (all_chapters.index(chapter), chapter.tests.index(item.function))
        for item in items
        if isinstance(chapter := item.callspec.params["chapter_node"], Chapter)
    }
    config.hook.pytest_deselected(items=[item for item in items if item not in places])
    items[:] = sorted(places, key=places.__getitem__)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the versions of the components that ran."""
    for component, version in _VERSIONS:
        terminalreporter.write_line(f"# version {component}: {version}")


@pytest.fixture(scope="session")
def given(pytestconfig: pytest.Config) -> Parts:
    """Set up the sandbox, and return the parts."""
    given = _parts(pytestconfig)
    sandbox.set_up(("/run", "/var/log", "/var/lib"))
    replace_dev()
    replace_sysctls()
    # crun refuses to run on a machine with the hierarchies of both versions of cgroups.
    if given.runtime and os.path.ismount(CGROUPS / "unified"):
        run("umount", str(CGROUPS / "unified"))
    os.mkdir(SHARED)
    create_devices()
    busybox_image(given.work / "busybox.tar")
    return given


@pytest.fixture(scope="session")
def machine(request: pytest.FixtureRequest, given: Parts) -> Iterator[Machine]:
    """Start the container runtime of a name with the pods' image, and a kubelet without any state."""
    directory = given.work / request.param
    directory.mkdir()
    runtime = _runtime(request.param, directory / "runtime", given)
    runtime.start()
    runtime.load(given.work / "busybox.tar")
    mount_memory("/var/lib/kubelet")
    root = f"/{given.cgroups}"
    kubelet = Standalone(Path(given.kubelet), directory / "kubelet", runtime.socket, cgroupRoot=root)
    kubelet.start()
    _VERSIONS.update(dict.fromkeys((runtime.versions | {"kubelet": kubelet.version}).items()))
    yield kubelet, runtime, directory
    kubelet.stop()
    runtime.stop()


def _runtime(name: str, directory: Path, given: Parts) -> ContainerRuntime:
    """Return the runtime of ``--runtime``, or one of the two containerds."""
    if name == WITH_CDI and not given.programs:
        pytest.skip(given.missing["programs"])
    programs = given.programs if name in (WITH_CDI, given.runtime) else ""
    return container_runtime(directory, name, programs, given.oci_runtime)


@pytest.fixture(scope="session")
def chapter_node(request: pytest.FixtureRequest, given: Parts, machine: Machine) -> Iterator[Node]:
    """Return a node with the plugin of a chapter, which the first test starts."""
    chapter: Chapter = request.param
    kubelet, runtime, directory = machine
    plugin: AsPod | AsProcess
    if not chapter.as_pod:
        plugin = AsProcess(directory / chapter.name, chapter.configuration, chapter.program)
    elif not given.image:
        pytest.skip(given.missing["image"])
    else:
        runtime.load(Path(given.image))
        plugin = AsPod(directory, kubelet, runtime)
        plugin.configure(chapter.configuration)
    node = Node(kubelet, runtime, plugin, resource=chapter.resource, devices=chapter.devices, each=chapter.each)
    given.tails = node.logs
    yield node
    node.tear_down()


@pytest.fixture
def node(request: pytest.FixtureRequest, chapter_node: Node) -> Iterator[Node]:
    """Return the node of a chapter as its tests expect it, also after one that failed, or without the first one."""
    if not chapter_node.intact and request.function is not request.node.callspec.params["chapter_node"].tests[0]:
        chapter_node.recover()
    failed = request.session.testsfailed
    yield chapter_node
    chapter_node.intact = request.session.testsfailed == failed


@pytest.fixture(params=["stand-in", "real"])
async def kubelet(request: pytest.FixtureRequest, chapter_node: Node) -> AsyncIterator[DeviceManager]:
    """Return the kubelet of a scenario, with a resource of the scenario's name: the stand-in, or the real one."""
    resource = f"scenario.test/{request.function.__name__.replace('_', '-')}"
    is_real = request.param == "real"
    async with real(chapter_node, resource) if is_real else stand_in(chapter_node.kubelet.minor, resource) as manager:
        yield manager
