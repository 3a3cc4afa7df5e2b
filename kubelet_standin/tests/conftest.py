"""Fixtures for the tests of the stand-in kubelet."""

from collections.abc import AsyncIterator

import pytest

from kubelet_standin import Behaviour, Kubelet
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
async def timed_kubelet(kubelet_dir: str, kubelet_behaviour: Behaviour, clock: Clock) -> AsyncIterator[Kubelet]:
    """Start a kubelet whose clock the test moves."""
    async with Kubelet(kubelet_dir, behaviour=kubelet_behaviour, clock=clock) as kubelet:
        yield kubelet
