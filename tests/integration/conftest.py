"""Fixtures of the integration tests."""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kubelet_standin import KubeletVersion
from kubelet_standin.apiserver import ApiServer
from tests.dra_node import DraNode
from tests.tmpfs_binderfs import Mounts


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounts]:
    """Yield the directory of the phones, which does not exist yet."""
    if os.geteuid() != 0:
        pytest.skip("mounts, which requires root")
    with contextlib.closing(Mounts(tmp_path / "phones", monkeypatch)) as mounted:
        yield mounted


@pytest.fixture
async def node(short_directory: Path, api_server: ApiServer, kubelet_version: KubeletVersion) -> AsyncIterator[DraNode]:
    """Yield a node with a kubelet for DRA drivers and an API server."""
    node = DraNode(short_directory, api_server, kubelet_version)
    async with node.kubelet:
        yield node
