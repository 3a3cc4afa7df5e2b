"""The cluster of the tests. ``python -m tests.e2e.kubeadm`` runs pytest here."""

import pytest

from tests.e2e.cluster import test_quickstart as quickstart
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.test_quickstart import Reader
from tests.e2e.common import sandboxed
from tests.e2e.common.waiting import until
from tests.e2e.kubeadm.node import KubeadmCluster
from tests.e2e.kubeadm.parts import OLD


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Refuse to run outside of the sandbox."""
    sandboxed.require(config, "python -m tests.e2e.kubeadm")


@pytest.fixture(scope="session")
def reader(pytestconfig: pytest.Config) -> Reader:
    """Return the reader of the quickstart, whose files the guest reads when it boots."""
    return quickstart.prepared(pytestconfig.stash[sandboxed.GIVEN])._replace(skipped=())


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config, reader: Reader) -> KubeadmCluster:
    """Return the cluster, whose machine runs."""
    cluster: KubeadmCluster = pytestconfig.stash[sandboxed.GIVEN]
    cluster.node.boot(cluster.programs_of[OLD])
    up = ("systemctl", "is-active", "multi-user.target")
    until(lambda: cluster.node.run(*up, seconds=SLOW), "systemd has started all units", seconds=2 * SLOW)
    return cluster
