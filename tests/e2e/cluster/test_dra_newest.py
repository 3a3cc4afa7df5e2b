"""Claims with the newest Kubernetes, without a feature gate; tests of other modules that depend on its version."""

import pytest

from tests.e2e.cluster import dra, phones, test_dra, test_dra_claims, test_dra_failures
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.scenes import without
from tests.e2e.common.waiting import until

pytestmark = pytest.mark.usefixtures("upgraded")


def _health(cluster: Cluster) -> set[str]:
    """Return the health of the devices in the status of the pod that is shown."""
    (status,) = cluster.api.get(f"{phones.collection('Pod')}/shown")["status"]["containerStatuses"]
    entries = [entry for entry in status.get("allocatedResourcesStatus", []) if entry["name"].startswith("claim:")]
    return {resource["health"] for entry in entries for resource in entry["resources"]}


def test_template_status(cluster: Cluster, driver: None) -> None:
    """The pod's status says whether the device of a claim of a template is healthy."""
    ((_, phone),) = dra.owners(cluster, phones.run(cluster, dra.pod("shown"))).values()
    until(lambda: _health(cluster) == {"Healthy"}, "the pod's status")
    with without(cluster, phone):
        until(lambda: _health(cluster) == {"Unhealthy"}, "the pod's status")
    until(lambda: _health(cluster) == {"Healthy"}, "the pod's status")
    phones.remove(cluster, "Pod", "shown")


test_installs = test_dra.test_installs
test_template = test_dra.test_template
test_kubelet_restart = test_dra.test_kubelet_restart
test_shared = test_dra_claims.test_shared
test_mapped = test_dra_claims.test_mapped
test_parameters = test_dra_claims.test_parameters
test_unhealthy = test_dra_failures.test_unhealthy
