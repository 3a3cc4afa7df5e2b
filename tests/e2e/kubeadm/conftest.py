"""The cluster of the tests. ``python -m tests.e2e.kubeadm`` runs pytest here."""

import pytest

from tests.e2e.cluster import test_quickstart as quickstart
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.test_quickstart import Reader
from tests.e2e.common import sandboxed
from tests.e2e.common.waiting import until
from tests.e2e.kubeadm.node import ControlPlaneNode, KubeadmCluster, KubeadmNode
from tests.e2e.kubeadm.parts import OLD


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Refuse to run outside of the sandbox."""
    sandboxed.require(config, "python -m tests.e2e.kubeadm")


@pytest.fixture(scope="session")
def reader(pytestconfig: pytest.Config) -> Reader:
    """Return the reader of the quickstart, whose files the guest reads when it boots."""
    return quickstart.prepared(pytestconfig.stash[sandboxed.GIVEN])


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> KubeadmCluster:
    """Return the cluster, whose machines do not run."""
    cluster: KubeadmCluster = pytestconfig.stash[sandboxed.GIVEN]
    return cluster


@pytest.fixture(scope="session")
def control(cluster: KubeadmCluster) -> ControlPlaneNode:
    """Return the node for the control plane, whose machine runs."""
    cluster.control.boot(cluster.programs_of[OLD], cluster.control.prepare)
    return cluster.control


@pytest.fixture(scope="session")
def node(cluster: KubeadmCluster, reader: Reader) -> KubeadmNode:
    """Return the node for phones, whose machine runs."""
    cluster.node.boot(cluster.programs_of[OLD])
    up = ("systemctl", "is-active", "multi-user.target")
    until(lambda: cluster.node.run(*up, seconds=SLOW), "systemd has started all units", seconds=2 * SLOW)
    return cluster.node
