"""What a cluster is made of: Kubernetes and etcd, Helm, a containerd, Debian's packages and the plugin's image.

Each function raises MissingError if this machine cannot have the part, and AssertionError if the build fails.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.common import packages, sandbox
from tests.e2e.common.report import say
from tests.e2e.deploy import parts as deploy
from tests.e2e.kernel import aosp_parts, foreign, kernels
from tests.e2e.kernel import parts as kernel
from tests.e2e.kernel.architectures import AMD64, Architecture
from tests.e2e.kubelet import parts as node


@dataclass(frozen=True)
class GuestParts:
    """What a machine with a real binder driver is made of."""

    architecture: Architecture
    tree: foreign.Tree
    kernel: kernels.Bootable
    kubernetes: Path
    """The directory of the kubelet."""
    containerd: Path
    image: Path
    """An archive of the plugin's image."""
    android: Path
    """Android's binder software, for phones."""


@dataclass(frozen=True)
class Parts:
    """The paths of the parts."""

    kubernetes: Path
    """The directory of etcd, the control plane's programs, the kubelet and kubectl."""
    newest: Path | None
    """The same of the newest version, or None if it is not available."""
    containerd: Path
    helm: Path
    kustomize: Path
    image: Path
    """An archive of the plugin's image."""
    guest: GuestParts | None = None
    """The parts of a machine with a real binder driver."""


def collect(*, newest: bool, binder: bool = False, architecture: Architecture = AMD64) -> Parts:
    """Return all parts; what the cache does not have is installed or built.

    ``newest``: also the newest Kubernetes. ``binder``: also a machine with a real binder driver, if there can be one,
    which has this architecture.
    """
    if os.geteuid() != 0:
        raise packages.MissingError("a cluster requires root")
    packages.install((*node.PACKAGES, "openssl"))
    sandbox.require()
    return Parts(
        kubernetes=node.kubernetes(),
        newest=node.kubernetes(node.NEWEST) if newest else None,
        containerd=node.containerd(),
        helm=Path(deploy.helm()),
        kustomize=Path(deploy.kustomize()),
        image=node.plugin_image(),
        guest=_guest(architecture) if binder else None,
    )


def control_planes(modules: Mapping[str, Path]) -> dict[str, Path]:
    """Return the programs of control planes without nodes, which modules pin."""
    packages.install(("openssl", "iproute2"))
    sandbox.require()
    return {name: node.kubernetes(module) for name, module in modules.items()}


def _guest(architecture: Architecture) -> GuestParts | None:
    try:
        kernel.install(architecture)
        return GuestParts(
            architecture=architecture,
            tree=foreign.tree(architecture),
            kernel=kernels.bootable(kernels.DEFAULT, architecture=architecture, more=kernel.NODE_MODULES),
            kubernetes=node.kubernetes(target=architecture.target),
            containerd=node.containerd(architecture.target),
            image=node.plugin_image(architecture.target),
            android=aosp_parts.build(architecture.user_space),
        )
    except packages.MissingError as error:
        say(f"# no machine with a real binder driver: {error}")
        return None
