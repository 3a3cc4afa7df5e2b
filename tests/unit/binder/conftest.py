"""Fixtures for the tests of the binder package."""

from __future__ import annotations

import pytest

from tests.fake_binderfs import FakeBinderfs


@pytest.fixture
def fake_binderfs(monkeypatch: pytest.MonkeyPatch) -> FakeBinderfs:
    """Replace the kernel's binderfs by plain files."""
    return FakeBinderfs(monkeypatch)
