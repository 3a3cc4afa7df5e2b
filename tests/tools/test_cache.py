"""The cache of the tests' parts."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.e2e.common import cache

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_was_used_last_is_not_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for seconds, name in enumerate(("image-1", "image-2", "image-3")):
        os.utime(cache.cached(name, lambda directory: (directory / "image.tar").touch()), (seconds, seconds))
    cache.cached("image-1", lambda _: None)
    cache.evict("image-", keep=2)
    assert sorted(path.name for path in cache.root().glob("image-*")) == ["image-1", "image-3"]


def test_part_is_built_once_by_those_who_want_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    together = threading.Barrier(4)
    built: list[Path] = []

    def want() -> Path:
        together.wait()
        return cache.cached("part", built.append)

    with ThreadPoolExecutor(4) as executor:
        paths = {future.result() for future in [executor.submit(want) for _ in range(4)]}
    assert (len(paths), len(built)) == (1, 1)
