"""Fixtures of the integration tests."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tmpfs_binderfs import Mounts


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounts]:
    """Yield the directory of the phones, which does not exist yet."""
    with contextlib.closing(Mounts(tmp_path / "phones", monkeypatch)) as mounted:
        yield mounted
