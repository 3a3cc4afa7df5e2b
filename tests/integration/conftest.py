"""Fixtures of the integration tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubelet_standin import KubeletVersion
from kubelet_standin.apiserver import ApiServer
from tests.dra_node import DraNode


@pytest.fixture
async def node(short_directory: Path, api_server: ApiServer, kubelet_version: KubeletVersion) -> AsyncIterator[DraNode]:
    """Yield a node with a kubelet for DRA drivers and an API server."""
    node = DraNode(short_directory, api_server, kubelet_version)
    async with node.kubelet:
        yield node
