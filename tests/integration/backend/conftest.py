"""Fixtures of the tests of the backend package."""

import pytest

from tests.recreations import Recreations


@pytest.fixture
def recreations(monkeypatch: pytest.MonkeyPatch) -> Recreations:
    return Recreations(monkeypatch)
