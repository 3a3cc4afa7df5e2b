"""pytest fixtures around the stand-in kubelet. pytest loads them wherever this distribution is installed.

::

    async def test_plugin_registers(kubelet):           # requires pytest-asyncio
        process = await asyncio.create_subprocess_exec("my-plugin", "--dir", kubelet.directory)
        await kubelet.wait_for(lambda k: k.resource("example.com/gpu").allocatable == 2)

``kubelet_dir``
    An empty directory whose path is short enough for unix sockets, unlike ``tmp_path``. A plain fixture.
``kubelet_version``
    The :class:`~kubelet_standin.KubeletVersion` of the test: the newest. To run a test with each, parametrize it by
    ``@pytest.mark.parametrize("kubelet_version", KubeletVersion)``; to choose one for a module, override the fixture.
``kubelet``
    A started :class:`~kubelet_standin.Kubelet` in ``kubelet_dir``; it is stopped at the end of the test.
    ``@pytest.mark.kubelet(grace_period=1, seed=7)`` passes arguments to it. This fixture is asynchronous and requires
    pytest-asyncio. Without it, start a Kubelet in the event loop of your choice, in ``kubelet_dir``.

pytest loads this module at its start, in each of its processes: it imports pytest, and all else on first use.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from kubelet_standin import Kubelet, KubeletVersion


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "kubelet(**arguments): arguments of kubelet_standin.Kubelet")


@pytest.fixture
def kubelet_dir() -> Iterator[str]:
    """Return an empty directory whose path is short enough for unix sockets."""
    directory = tempfile.mkdtemp(prefix="kubelet-", dir="/tmp")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def kubelet_version() -> KubeletVersion:
    """Return the version of the kubelet: the newest."""
    from kubelet_standin.versions import NEWEST  # noqa: PLC0415 - not when pytest starts

    return NEWEST


async def _kubelet(
    request: pytest.FixtureRequest, kubelet_dir: str, kubelet_version: KubeletVersion
) -> AsyncIterator[Kubelet]:
    """Return a started kubelet in ``kubelet_dir``."""
    from kubelet_standin import Kubelet  # noqa: PLC0415 - not when pytest starts

    marker = request.node.get_closest_marker("kubelet")
    arguments = marker.kwargs if marker is not None else {}
    async with Kubelet(kubelet_dir, version=kubelet_version, **arguments) as kubelet:
        yield kubelet


def _no_kubelet(kubelet_version: KubeletVersion) -> None:  # noqa: ARG001 - the same parameters as with pytest-asyncio
    """Fail: the fixture is asynchronous."""
    pytest.fail("the kubelet fixture requires pytest-asyncio: pip install pytest-asyncio", pytrace=False)


try:
    import pytest_asyncio
except ImportError:
    kubelet: Any = pytest.fixture(name="kubelet")(_no_kubelet)
else:
    kubelet = pytest_asyncio.fixture(_kubelet, name="kubelet")
