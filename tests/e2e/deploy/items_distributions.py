"""Items: the chart with the values that Kubernetes distributions require, rendered and validated."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final

from tests.e2e.deploy.manifests import VALUES, Manifest, accepted, charted, the
from tests.layouts import DEVICE_PLUGINS, LAYOUTS, Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

_VARIANTS: Final = ("default", "provision", "privileged", "dra")
_DEFAULT_TYPE: Final = ("--set", "securityContext.seLinuxOptions=null")
"""What the page says of OpenShift with `provision.mode: plugin`."""


def kubelet_directories() -> None:
    """The pod mounts the kubelet's directories of each distribution, in each variant."""
    for layout in LAYOUTS:
        for variant in _VARIANTS:
            paths = _host_paths(_daemon_set(layout, variant))
            assert paths["device-plugins"] == DEVICE_PLUGINS, f"{layout.name}, {variant}: {paths}"
            assert paths["pod-resources"] == f"{layout.root}/pod-resources", f"{layout.name}, {variant}: {paths}"
            if variant == "dra":
                assert paths["plugins-registry"] == f"{layout.root}/plugins_registry", f"{layout.name}: {paths}"
                assert paths["plugins"] == f"{layout.root}/plugins", f"{layout.name}: {paths}"


def writable_directories() -> None:
    """The pod requires no directory that a distribution has on a read-only file system, and CDI files are read."""
    for layout in LAYOUTS:
        for variant in _VARIANTS:
            paths = _host_paths(_daemon_set(layout, variant))
            refused = {name: path for name, path in paths.items() if f"{path}/".startswith(_prefixes(layout))}
            assert refused == {}, f"{layout.name}, {variant}: {refused}"
            cdi = paths.get("cdi", layout.cdi[-1]).replace("/var/run/", "/run/")
            assert cdi in layout.cdi, f"{layout.name}, {variant}: CDI files in {cdi}"
            assert ("cdi" in paths) == (variant in {"privileged", "dra"}), f"{layout.name}, {variant}: {paths}"


def selinux_types() -> None:
    """Only containers without privilege have an SELinux type, where the distribution requires one."""
    for layout in LAYOUTS:
        for variant in _VARIANTS:
            pod = _daemon_set(layout, variant)["spec"]["template"]["spec"]
            for container in (*pod["containers"], *pod.get("initContainers", ())):
                context = container["securityContext"]
                found = (context.get("seLinuxOptions") or {}).get("type", "")
                expected = "" if context["privileged"] else layout.selinux
                assert found == expected, f"{layout.name}, {variant}, {container['name']}: {found!r}, not {expected!r}"


def security_context_constraints() -> None:
    """On OpenShift, the pods name the constraints that they require, and the check leaves its user to them."""
    (layout,) = (layout for layout in LAYOUTS if layout.name == "openshift")
    metadata = _daemon_set(layout, "default")["spec"]["template"]["metadata"]
    assert metadata["annotations"]["openshift.io/required-scc"] == "privileged", metadata
    job = the("Job", charted("--api-versions", "security.openshift.io/v1"))
    context = job["spec"]["template"]["spec"]["securityContext"]
    assert context == {"seccompProfile": {"type": "RuntimeDefault"}}, context


def _daemon_set(layout: Layout, variant: str) -> Manifest:
    """Return the DaemonSet with a distribution's values and those of a variant, after the API server's validation."""
    return _daemon_sets()[layout.name, variant]


@functools.cache
def _daemon_sets() -> dict[tuple[str, str], Manifest]:
    """Return the DaemonSet of each distribution and variant. One call validates all, which takes less time."""
    names = [(layout, variant) for layout in LAYOUTS for variant in _VARIANTS]
    rendered = [_rendered(layout, variant) for layout, variant in names]
    valid = accepted(manifest for manifests in rendered for manifest in manifests)
    found = [manifest for manifest in valid if manifest["kind"] == "DaemonSet"]
    return {(layout.name, variant): manifest for (layout, variant), manifest in zip(names, found, strict=True)}


def _rendered(layout: Layout, variant: str) -> list[Manifest]:
    required = [word for name, part in layout.values.items() for word in ("--set-json", f"{name}={json.dumps(part)}")]
    arguments: Sequence[str] = (*required, *VALUES[variant])
    if layout.selinux and variant in {"privileged", "dra"}:
        arguments = (*arguments, *_DEFAULT_TYPE)
    return charted(*arguments)


def _host_paths(daemon_set: Manifest) -> dict[str, str]:
    """Return the paths of the host that the pod mounts, by the volume's name."""
    volumes: list[dict[str, Any]] = daemon_set["spec"]["template"]["spec"]["volumes"]
    return {volume["name"]: volume["hostPath"]["path"] for volume in volumes if "hostPath" in volume}


def _prefixes(layout: Layout) -> tuple[str, ...]:
    return tuple(f"{path}/" for path in layout.read_only)


ITEMS = (kubelet_directories, writable_directories, selinux_types, security_context_constraints)
