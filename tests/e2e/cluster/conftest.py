"""The cluster that all tests share, and what their modules need of it."""

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.cluster import binder, dra, phones, plugin, scenes
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.guest import GuestMachine
from tests.e2e.common import sandboxed
from tests.e2e.common.packages import MissingError

_ORDER: Final = (
    *("install", "kustomize", "kubectl_phones", "phones", "dra", "dra_claims", "dra_failures", "node_objects"),
    *("rollout", "binder", "quickstart", "dra_binder", "reboot"),
    # Later modules keep further nodes, and the newest Kubernetes.
    *("failures", "fleet", "upgrade", "updates", "dra_newest", "dra_migration"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the modules of this directory."""
    sandboxed.require(config, "make test-cluster PYTEST='-k NAME'")
    here = Path(__file__).parent
    items.sort(key=lambda item: _ORDER.index(item.path.stem[5:]) if item.path.parent == here else -1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Remove what a test that fails has left."""
    report = yield
    if report.failed:
        _clean_up(item.config.stash[sandboxed.GIVEN])
    return report


def _clean_up(cluster: Cluster) -> None:
    """Remove what tests usually make, so that a failed one does not make the next ones fail."""
    kinds = "deployments,statefulsets,pods,resourceclaims,resourceclaimtemplates"
    commands = (
        lambda: cluster.kubectl("delete", kinds, "--all", "--namespace=default", "--timeout=60s"),
        lambda: cluster.kubectl("uncordon", "--selector=kubernetes.io/hostname"),
        lambda: plugin.uninstall(cluster),
    )
    for command in commands:
        with contextlib.suppress(*sandboxed.FAILURES):
            command()


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Cluster:
    """Return the cluster, which has a node."""
    cluster: Cluster = pytestconfig.stash[sandboxed.GIVEN]
    cluster.start()
    return cluster


@pytest.fixture(scope="session")
def three_nodes(cluster: Cluster) -> None:
    """Add nodes until there are three."""
    cluster.grow(3)


@pytest.fixture(scope="session")
def newest(cluster: Cluster) -> Path:
    """Return the programs of the newest Kubernetes, which the cluster has later."""
    assert cluster.parts.newest is not None
    return cluster.parts.newest


@pytest.fixture(scope="module")
def upgraded(cluster: Cluster, newest: Path) -> None:
    """Use the newest Kubernetes in control plane and kubelets."""
    cluster.upgrade(newest)


@pytest.fixture(scope="session")
def binder_parts(cluster: Cluster) -> None:
    """Skip tests if there can be no machine with a real binder driver."""
    if cluster.parts.guest is None:
        raise MissingError("there is no machine with a real binder driver")


@pytest.fixture(scope="module")
def guest(cluster: Cluster, binder_parts: None) -> Iterator[GuestMachine]:
    """Return a node with a real binder driver; it and the plugin are removed at the end."""
    yield binder.node(cluster)
    plugin.uninstall(cluster)
    binder.remove_node(cluster)


@pytest.fixture(scope="module")
def _phones_removed(cluster: Cluster) -> Iterator[None]:
    yield
    phones.remove(cluster, "Deployment", "web")
    plugin.uninstall(cluster)


@pytest.fixture
def two_phones(cluster: Cluster, _phones_removed: None) -> None:
    """Install the plugin, and run phones unless they run; both are removed after the module's last test."""
    plugin.install(cluster)
    scenes.prepare(cluster)
    if not phones.of(cluster, "web"):
        phones.create(cluster, phones.deployment("web", scenes.RUNNING))


@pytest.fixture(scope="module")
def _driver_removed(cluster: Cluster) -> Iterator[None]:
    yield
    dra.remove(cluster)


@pytest.fixture
def driver(cluster: Cluster, _driver_removed: None) -> None:
    """Install the plugin as a DRA driver, unless an earlier test has; it is removed after the module's last test."""
    dra.ensure(cluster)


@pytest.fixture
def pods(cluster: Cluster, driver: None) -> dra.Undisturbed:
    """Run pods with claims that the test must not disturb."""
    return dra.Undisturbed(cluster)
