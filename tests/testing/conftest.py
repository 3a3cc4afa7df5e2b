"""Fixtures for the tests of the stand-in kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.testing.stub import Plugins

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def plugins(kubelet_dir: str) -> AsyncIterator[Plugins]:
    """Start stub plugins in the kubelet's directory, and stop them after the test."""
    stubs = Plugins(kubelet_dir)
    yield stubs
    await stubs.stop()
