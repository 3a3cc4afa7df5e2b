"""Fixtures for the tests of the stand-in kubelet."""

from collections.abc import AsyncIterator

import pytest

from kubelet_standin import Kubelet, KubeletVersion
from kubelet_standin.tests.stub import Clock, Plugins


@pytest.fixture
def clock() -> Clock:
    """Return a clock that the test moves."""
    return Clock()


@pytest.fixture
async def plugins(kubelet_dir: str) -> AsyncIterator[Plugins]:
    """Start stub plugins in the kubelet's directory, and stop them after the test."""
    stubs = Plugins(kubelet_dir)
    yield stubs
    await stubs.stop()


@pytest.fixture
async def timed_kubelet(kubelet_dir: str, kubelet_version: KubeletVersion, clock: Clock) -> AsyncIterator[Kubelet]:
    """Start a kubelet whose clock the test moves."""
    async with Kubelet(kubelet_dir, version=kubelet_version, clock=clock) as kubelet:
        yield kubelet
