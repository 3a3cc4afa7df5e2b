"""Fixtures of the configuration tests."""

from pathlib import Path

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "plugin.yaml"
