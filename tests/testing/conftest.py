"""Fixtures for the tests of the stand-in kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aosp_plugin.testing import Behaviour, Kubelet
from tests.testing.stub import Plugins

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support import Clock


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
