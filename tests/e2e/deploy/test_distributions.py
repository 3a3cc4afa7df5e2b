"""The chart with the values that Kubernetes distributions require, rendered and validated."""

import itertools
import json
from typing import Final, NamedTuple

import pytest

from tests.e2e.deploy.conftest import Accept, Render
from tests.e2e.deploy.manifests import Manifest, every, pod_of, the
from tests.layouts import DEVICE_PLUGINS, LAYOUTS, Layout

pytestmark = pytest.mark.core

_VARIANTS: Final = ("default", "provision", "privileged", "dra")
_DEFAULT_TYPE: Final = "securityContext.seLinuxOptions=null"
"""What the page says of OpenShift with `provision.mode: plugin`."""


class Rendered(NamedTuple):
    """The DaemonSet with a distribution's values and those of a variant, after the API server's validation."""

    layout: Layout
    variant: str
    daemon_set: Manifest

    @property
    def host_paths(self) -> dict[str, str]:
        """The paths of the host that the pod mounts, by the volume's name."""
        volumes = pod_of(self.daemon_set)["volumes"]
        return {volume["name"]: volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}


@pytest.fixture(scope="module")
def all_rendered(charted: Render, accepted: Accept) -> dict[tuple[str, str], Manifest]:
    """Return each DaemonSet by distribution and variant. One call validates all, which takes less time."""
    names, manifests = [], []
    for layout, variant in itertools.product(LAYOUTS, _VARIANTS):
        required = (f"{name}={json.dumps(part)}" for name, part in layout.values.items())
        options = [word for value in required for word in ("--set-json", value)]
        if layout.selinux and variant in {"privileged", "dra"}:
            options += ["--set", _DEFAULT_TYPE]
        names.append((layout.name, variant))
        manifests += charted(variant, "", *options)
    return dict(zip(names, every("DaemonSet", accepted(manifests)), strict=True))


@pytest.fixture(params=itertools.product(LAYOUTS, _VARIANTS), ids=lambda pair: f"{pair[0].name}-{pair[1]}")
def rendered(request: pytest.FixtureRequest, all_rendered: dict[tuple[str, str], Manifest]) -> Rendered:
    layout, variant = request.param
    return Rendered(layout, variant, all_rendered[layout.name, variant])


def test_the_pod_mounts_the_directories_of_the_kubelet(rendered: Rendered) -> None:
    root = rendered.layout.root
    expected = {"device-plugins": DEVICE_PLUGINS, "pod-resources": f"{root}/pod-resources"}
    if rendered.variant == "dra":
        expected |= {"plugins-registry": f"{root}/plugins_registry", "plugins": f"{root}/plugins"}
    assert expected.items() <= rendered.host_paths.items()


def test_the_pod_requires_no_directory_that_is_read_only_and_cdi_files_are_read(rendered: Rendered) -> None:
    layout, paths = rendered.layout, rendered.host_paths
    refused = tuple(f"{path}/" for path in layout.read_only)
    assert [path for path in paths.values() if f"{path}/".startswith(refused)] == []
    assert paths.get("cdi", layout.cdi[-1]).replace("/var/run/", "/run/") in layout.cdi
    assert ("cdi" in paths) == (rendered.variant in {"privileged", "dra"})


def test_only_containers_without_privilege_have_an_selinux_type_where_it_is_required(rendered: Rendered) -> None:
    pod = pod_of(rendered.daemon_set)
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        context = container["securityContext"]
        found = (context.get("seLinuxOptions") or {}).get("type", "")
        assert found == ("" if context["privileged"] else rendered.layout.selinux), container["name"]


def test_pods_on_openshift_name_their_constraints_and_the_check_leaves_its_user_to_them(
    all_rendered: dict[tuple[str, str], Manifest], charted: Render
) -> None:
    metadata = all_rendered["openshift", "default"]["spec"]["template"]["metadata"]
    assert metadata["annotations"]["openshift.io/required-scc"] == "privileged"
    job = the("Job", charted("default", "", "--api-versions", "security.openshift.io/v1"))
    assert pod_of(job)["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
