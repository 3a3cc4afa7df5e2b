"""The boots: which guest each one needs, and which tests run in it, in their order."""

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

from tests.e2e.kernel import kernels, phones, selinux
from tests.e2e.kernel.parts import DENIED_MODULES, GPU_MODULES
from tests.e2e.kubelet.runtimes import DEBIAN_12

VARIABLE: Final = "E2E_BOOT"
"""The environment variable with the name of the boot, in its guest."""

SELINUX: Final = "security=selinux"
"""Without a policy SELinux allows everything, and gives all processes one context."""
_GPUS: Final = ("-device", "bochs-display", *("-device", "virtio-gpu-pci") * 2)
"""A card without a render node, as a BMC has, and two GPUs."""
_NO_IDLING: Final = ("-icount", "sleep=off")
"""The clock of an idle guest advances at once to what happens next in it."""
_NODE: Final = ("kubelet", "image", "kustomize", "runtime")
_FOR_PODS: Final = 6144
"""MiB; the images that containerd unpacks are in memory too."""


class Boot(NamedTuple):
    """A guest, and the tests that run in it."""

    tests: Sequence[str]
    """Modules, without ``test_``, and single tests of modules."""
    core: bool = False
    """Whether these are the tests of the core set alone, each with one runtime."""
    kernel: str = kernels.DEFAULT
    """Without ``--kernel``."""
    runtime: str = DEBIAN_12
    """That of the kubelet, without ``--runtime``."""
    devices: Sequence[str] = ()
    """The value of the binder module's parameter: the kernel creates these devices in each new binderfs."""
    binderfs: bool = True
    security: str = ""
    """For the kernel's command line: the Linux security module. Of its own, Debian's has AppArmor, or else SELinux."""
    modules: Sequence[str] = ()
    """Further modules."""
    parts: Sequence[str] = ()
    """What the guest needs besides, by name; without one of them, a core set runs without the tests that need it."""
    native: bool = False
    """Whether some of the programs are built for x86-64 alone."""
    confined: bool = False
    """Whether it is always as with ``--confined``."""
    requested: bool = False
    """Whether it runs only by name."""
    systemd: bool = False
    """Whether systemd is process 1."""
    memory: int = 2048
    """MiB."""
    options: Sequence[str] = ()
    """QEMU's."""


BOOTS: Final = {
    "core": Boot(
        ("containers", "phones", "binderfs_phones", "phone_escapes", "aosp", "simulation"),
        core=True,
        security=SELINUX,
        parts=("android", "android32", "probe32"),
    ),
    "binderfs": Boot(("device_tool", "serve", "containers"), parts=("probe32",)),
    "phones": Boot(("phones",)),
    "binderfs-phones": Boot(
        ("binderfs_phones", "provisioned_phones", "phone_escapes", "phone_hosts", "phone_crashes"),
        devices=phones.NAMES,
        parts=("probe32",),
    ),
    "claims": Boot(("claims",), devices=phones.NAMES),
    "host-devices": Boot(("host_devices",), devices=phones.NAMES, modules=GPU_MODULES, options=_GPUS),
    "foreign-binderfs": Boot(
        ("foreign_binderfs",),
        devices=phones.NAMES,
        modules=DENIED_MODULES,
        parts=("probe32",),
        native=True,
        confined=True,
    ),
    "android": Boot(
        ("aosp.py::test_works", "aosp.py::test_compat", "aosp.py::test_compat_tests"),
        security=SELINUX,
        parts=("android", "android32"),
    ),
    "android-apparmor": Boot(
        ("aosp.py::test_unanswered",), security="apparmor=1 security=apparmor", parts=("android",)
    ),
    "other-names": Boot(
        ("binderfs_phones", "phone_escapes"), core=True, devices=("anbox", "binder"), parts=("probe32",)
    ),
    "stock": Boot(("stock",), devices=[f"aosp_binder{number}" for number in range(12)], binderfs=False),
    "systemd": Boot(("systemd",), native=True, systemd=True),
    "pods": Boot(("pods", "phone_pods"), parts=_NODE, memory=_FOR_PODS),
    "android-pods": Boot(("android_pods",), security=SELINUX, parts=("android", *_NODE), memory=_FOR_PODS),
    "user-namespaces": Boot(
        ("user_namespaces",),
        kernel="trixie",
        runtime="containerd-2.1+runc",
        native=True,
        parts=_NODE,
        memory=_FOR_PODS,
    ),
    "selinux": Boot(
        ("selinux", "android_pods.py::test_works"),
        kernel="trixie",
        runtime="containerd-2.1+runc",
        security=SELINUX,
        native=True,
        parts=(selinux.PART, "android", *_NODE),
        memory=_FOR_PODS,
        requested=True,
    ),
    "systemd-pods": Boot(("systemd_pods",), native=True, systemd=True, parts=_NODE, memory=_FOR_PODS),
    "night": Boot(
        ("night",), native=True, systemd=True, parts=_NODE, memory=_FOR_PODS, options=_NO_IDLING, requested=True
    ),
}

CURRENT: Final = BOOTS.get(os.environ.get(VARIABLE, ""))
"""In a guest: its boot."""
