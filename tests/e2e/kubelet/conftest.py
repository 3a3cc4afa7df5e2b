"""The node of a chapter's tests. ``python -m tests.e2e.kubelet`` runs pytest here, in a sandbox."""

import os
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.e2e.common.images import busybox_image
from tests.e2e.kubelet import chapters, parts, sandbox, versions
from tests.e2e.kubelet.chapters import Chapter
from tests.e2e.kubelet.crio import ContainerRuntime, Crio
from tests.e2e.kubelet.managers import DeviceManager, real, stand_in
from tests.e2e.kubelet.node import Node, create_devices
from tests.e2e.kubelet.plugins import SHARED, AsPod, AsProcess
from tests.e2e.kubelet.runtime import Runtime
from tests.e2e.kubelet.runtimes import COMBINATIONS, CRI_O, WITH_CDI
from tests.e2e.kubelet.standalone import Standalone

Machine: TypeAlias = tuple[Standalone, ContainerRuntime, Path]
"""A running kubelet and runtime, and the directory for plugins' files."""

_PARTS: Final = parts.passed()
_COMBINATION: Final = COMBINATIONS.get(_PARTS.runtime)
_CHAPTERS: Final = chapters.of(_COMBINATION)
_VERSIONS: Final[dict[tuple[str, str], None]] = {}
"""The names and versions of the components that ran, in their order."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test by its chapters, and by the container runtime of each."""
    if "chapter_node" in metafunc.fixturenames:
        assert metafunc.function in chapters.ALL_TESTS, f"{metafunc.function.__name__} belongs to no chapter"
        found = [chapter for chapter in _CHAPTERS if metafunc.function in chapter.tests]
        parameters = [
            pytest.param(
                _PARTS.runtime or chapter.containerd, chapter, id=chapter.name, marks=chapter.marks(metafunc.function)
            )
            for chapter in found
        ]
        metafunc.parametrize(("machine", "chapter_node"), parameters, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Run one chapter after the other, each in its order. Skip tests that are about other kubelets."""
    if _PARTS.kubelet:
        minor = versions.minor(versions.of(_PARTS.kubelet))
        for item in items:
            if reason := versions.missing(item, minor):
                item.add_marker(pytest.mark.skip(reason=reason))
    elif not config.option.collectonly:
        raise pytest.UsageError("the tests of tests/e2e/kubelet run in a sandbox, by `make test-kubelet`")
    places = {
        item: (_CHAPTERS.index(chapter), chapter.tests.index(item.function))
        for item in items
        if isinstance(chapter := item.callspec.params["chapter_node"], Chapter)
    }
    config.hook.pytest_deselected(items=[item for item in items if item not in places])
    items[:] = sorted(places, key=places.__getitem__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of the logs to the report of a failed test."""
    report = yield
    if report.failed and isinstance(node := item.funcargs.get("chapter_node"), Node):
        report.sections += node.logs()
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the versions of the components that ran."""
    for component, version in _VERSIONS:
        terminalreporter.write_line(f"# version {component}: {version}")


@pytest.fixture(scope="session")
def work() -> Path:
    """Set up the sandbox, and return the directory for files."""
    sandbox.set_up()
    if _COMBINATION:
        sandbox.hide_unified_cgroups()
    os.mkdir(SHARED)
    create_devices()
    busybox_image(Path(_PARTS.work, "busybox.tar"))
    return Path(_PARTS.work)


@pytest.fixture(scope="session")
def machine(request: pytest.FixtureRequest, work: Path) -> Iterator[Machine]:
    """Start the container runtime of a name with the pods' image, and a kubelet without any state."""
    directory = work / request.param
    directory.mkdir()
    runtime = _runtime(request.param, directory / "runtime")
    runtime.start()
    runtime.load(work / "busybox.tar")
    sandbox.reset_kubelet()
    kubelet = Standalone(Path(_PARTS.kubelet), directory / "kubelet", runtime.socket)
    kubelet.start()
    _VERSIONS.update(dict.fromkeys((runtime.versions | {"kubelet": kubelet.version}).items()))
    yield kubelet, runtime, directory
    kubelet.stop()
    runtime.stop()


def _runtime(name: str, directory: Path) -> ContainerRuntime:
    """Return the runtime of ``--runtime``, or one of the two containerds."""
    programs = Path(_PARTS.programs) if _PARTS.programs else None
    if programs and name.startswith(CRI_O):
        return Crio(directory, programs, oci_runtime=_PARTS.oci_runtime)
    if name == WITH_CDI and not programs:
        pytest.skip(_PARTS.missing["programs"])
    return Runtime(directory, programs if name in (WITH_CDI, _PARTS.runtime) else None, oci_runtime=_PARTS.oci_runtime)


@pytest.fixture(scope="session")
def chapter_node(request: pytest.FixtureRequest, machine: Machine) -> Iterator[Node]:
    """Return a node with the plugin of a chapter, which the first test starts."""
    chapter: Chapter = request.param
    kubelet, runtime, directory = machine
    plugin: AsPod | AsProcess
    if not chapter.as_pod:
        plugin = AsProcess(directory / chapter.name, chapter.configuration, chapter.program)
    elif not _PARTS.image:
        pytest.skip(_PARTS.missing["image"])
    else:
        runtime.load(Path(_PARTS.image))
        plugin = AsPod(directory, kubelet, runtime)
        plugin.configure(chapter.configuration)
    node = Node(kubelet, runtime, plugin, resource=chapter.resource, devices=chapter.devices, each=chapter.each)
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
