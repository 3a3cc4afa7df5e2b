"""pytest fixtures for the tests of a device plugin or DRA driver. pytest loads them wherever this is installed.

The README has a first test. Each of these fixtures is a started stand-in, which is stopped at the end of the test:

``kubelet``
    A :class:`~kubelet_standin.Kubelet` in ``kubelet_dir``.
``pod_resources``
    The :class:`~kubelet_standin.PodResources` API of ``kubelet``; its socket is ``pod_resources.path``.
``dra_kubelet``
    A :class:`~kubelet_standin.DraKubelet` in ``kubelet_dir/plugins_registry``.
``api_server``
    An :class:`~kubelet_standin.apiserver.ApiServer`; requires aiohttp.

``@pytest.mark.kubelet(grace_period=1, seed=7)`` passes arguments to the fixture of the same name. They are asynchronous
and require pytest-asyncio in its mode ``auto``. Two other fixtures do not:

``kubelet_dir``
    An empty directory whose path is short enough for unix sockets, unlike ``tmp_path``.
``kubelet_version``
    The :class:`~kubelet_standin.KubeletVersion` of both kubelets: the newest. To run a test with each, parametrize it
    by ``@pytest.mark.parametrize("kubelet_version", KubeletVersion)``; to choose one for a module, override it.

pytest loads this module at its start, in each of its processes: it imports pytest, and all else on first use.
"""

# ruff: noqa: PLC0415 - imports on first use
from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from kubelet_standin import DraKubelet, Kubelet, KubeletVersion, PodResources
    from kubelet_standin.apiserver import ApiServer

# Without pytest-asyncio, pytest says that an asynchronous test requires a plugin.
_fixture: Callable[[Callable[..., Any]], Any] = pytest.fixture
with contextlib.suppress(ImportError):
    import pytest_asyncio

    _fixture = pytest_asyncio.fixture


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for name, class_name in (("kubelet", "Kubelet"), ("dra_kubelet", "DraKubelet"), ("api_server", "ApiServer")):
        config.addinivalue_line("markers", f"{name}(**arguments): arguments of kubelet_standin's {class_name}")


def _arguments(request: pytest.FixtureRequest) -> dict[str, Any]:
    marker = request.node.get_closest_marker(request.fixturename)
    return marker.kwargs if marker is not None else {}


@pytest.fixture
def kubelet_dir() -> Iterator[str]:
    """Return an empty directory whose path is short enough for unix sockets."""
    directory = tempfile.mkdtemp(prefix="kubelet-", dir="/tmp")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def kubelet_version() -> KubeletVersion:
    """Return the version of the kubelet: the newest."""
    from kubelet_standin.versions import NEWEST

    return NEWEST


@_fixture
async def kubelet(
    request: pytest.FixtureRequest, kubelet_dir: str, kubelet_version: KubeletVersion
) -> AsyncIterator[Kubelet]:
    """Return a started kubelet in ``kubelet_dir``."""
    from kubelet_standin import Kubelet

    async with Kubelet(kubelet_dir, version=kubelet_version, **_arguments(request)) as started:
        yield started


@_fixture
async def pod_resources(kubelet: Kubelet, kubelet_dir: str) -> AsyncIterator[PodResources]:
    """Return the podresources API of ``kubelet``, in a directory of its own, as that of a real one."""
    from kubelet_standin import PodResources

    os.mkdir(f"{kubelet_dir}/pod-resources")
    async with PodResources(kubelet, f"{kubelet_dir}/pod-resources/kubelet.sock") as started:
        yield started


@_fixture
async def dra_kubelet(
    request: pytest.FixtureRequest, kubelet_dir: str, kubelet_version: KubeletVersion
) -> AsyncIterator[DraKubelet]:
    """Return a started kubelet for DRA drivers."""
    from kubelet_standin import DraKubelet

    registry = f"{kubelet_dir}/plugins_registry"
    async with DraKubelet(registry, version=kubelet_version, **_arguments(request)) as started:
        yield started


@_fixture
async def api_server(request: pytest.FixtureRequest) -> AsyncIterator[ApiServer]:
    """Return a started API server."""
    from kubelet_standin.apiserver import ApiServer

    async with ApiServer(**_arguments(request)) as started:
        yield started
