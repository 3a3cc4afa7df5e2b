"""The kubelet's versions: how each is built, and which features the tests require.

Kubelets of other versions than that of the other tests are built from the go.mod that their Kubernetes release has, in
which k8s.io/api and other modules are directories of its repository; here they are the modules that were published
with the release. The release's go.sum and ``kubelets.sum`` have the hashes of all of them.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from kubelet_standin import KubeletVersion
from kubelet_standin.deviceplugin.admission import rejection
from tests.e2e.common import cache, golang
from tests.e2e.common.processes import run
from tests.e2e.deploy.parts import KUBERNETES

VERSIONS: Final = {"1.25": "v1.25.16", "1.28": "v1.28.15", "1.31": "v1.31.0", "1.36": "v1.36.3", "1.37": "v1.37.1"}
"""The versions that can be selected, besides the one in ``tests/e2e/kubernetes/go.mod``."""
SUMS: Final = Path(__file__).resolve().parent / "kubelets.sum"
"""Lines of go.sum for k8s.io/kubernetes and the modules that are published with it, of all versions."""
_MODULE: Final = "k8s.io/kubernetes"


def build(version: str) -> Path:
    """Return the binary of a kubelet; ``version`` is a key of VERSIONS."""
    link = golang.kubernetes_version(VERSIONS[version])
    # Without the cloud providers' volumes, which no test uses, there is much less to compile in versions before 1.31.
    tags = ["providerless"]
    return golang.build("kubelet", module(version), f"{_MODULE}/cmd/kubelet", link=link, tags=tags) / "kubelet"


def kubeadm(version: str) -> Path:
    """Return the directory of kubeadm, kube-proxy, and the program ``cluster`` of ``tests/e2e/kubernetes``."""
    packages = "./cluster", f"{_MODULE}/cmd/kubeadm", f"{_MODULE}/cmd/kube-proxy"
    link, sources = golang.kubernetes_version(VERSIONS[version]), [KUBERNETES / "cluster"]
    return golang.build("kubeadm", module(version), *packages, link=link, sources=sources)


def module(version: str) -> Path:
    """Return the module from which programs of a version are built."""
    release = VERSIONS[version]
    key = cache.key([release, _sums(release)])
    return cache.cached(f"kubelet-module-{key}", lambda path: _write_module(release, path))


def _write_module(release: str, directory: Path) -> None:
    """Write a go.mod and a go.sum from which a release's kubelet can be built."""
    downloaded = json.loads(golang.go("mod", "download", "-json", f"{_MODULE}@{release}", cwd=directory))
    sums = _sums(release)
    pinned = f"{_MODULE} {release} {downloaded['Sum']}\n"
    assert pinned in sums, f"{SUMS.name} does not have {pinned.strip()}"
    (directory / "go.mod").write_text(module_file(Path(downloaded["GoMod"]).read_text(), release))
    shutil.copyfile(Path(downloaded["Dir"], "go.sum"), directory / "go.sum")
    with (directory / "go.sum").open("a") as file:
        file.write(sums)


def _sums(release: str) -> str:
    """Return the lines of ``kubelets.sum`` for a release."""
    names = f"{_MODULE} {release}", f" {_published(release)}"
    return "".join(line for line in SUMS.read_text().splitlines(keepends=True) if any(name in line for name in names))


def _published(release: str) -> str:
    """Return the version of the modules that are published with a release."""
    return release.replace("v1.", "v0.", 1)


def module_file(text: str, release: str) -> str:
    """Return the go.mod of a module that builds programs of k8s.io/kubernetes; ``text`` is the go.mod of the latter."""
    text = text.replace(f"module {_MODULE}\n", "module aosp-device-plugin/kubelet\n")
    text = re.sub(r"=> \./staging/src/(\S+)", rf"=> \1 {_published(release)}", text)
    return f"{text}\nrequire {_MODULE} {release}\n"


class Condition(NamedTuple):
    """Which kubelets a test is about: the first and the last minor version."""

    reason: str
    """Why the test is skipped with other versions."""
    first: int = 0
    last: int = 99


def missing(test: pytest.Item, minor: int) -> str:
    """Return why a test is not about a minor version, from its markers ``requires``, or ""."""
    conditions = (marker.args[0] for marker in test.iter_markers("requires"))
    return next((each.reason for each in conditions if not each.first <= minor <= each.last), "")


class Feature(NamedTuple):
    """A feature of newer kubelets."""

    name: str
    first: int
    """The first minor version that has it."""
    default: int
    """The first minor version that has it by default; before that its feature gate is turned on."""

    @property
    def required(self) -> Condition:
        """The condition of tests that require it."""
        gate = f", by default since 1.{self.default}" if self.default > self.first else ""
        return Condition(f"requires {self.name}, since 1.{self.first}{gate}", self.first)


LOSES_DEVICES: Final = Condition("kubelets since 1.37 keep the devices of the other plugin", last=36)
KEEPS_DEVICES: Final = Condition("kubelets before 1.37 lose the devices of both plugins", 37)
WITHOUT_CDI: Final = Condition("kubelets since 1.28 support CDI", last=27)
DRA: Final = Condition("requires resource.k8s.io/v1, since 1.34", 34)

CRASH_LOOP: Final = Feature("KubeletCrashLoopBackOffMax", 32, 35)
GET: Final = Feature("KubeletPodResourcesGet", 27, 34)
HEALTH: Final = Feature("ResourceHealthStatus", 31, 36)
CDI: Final = Feature("DevicePluginCDIDevices", 28, 29)
CDI_BY_FIELD_ALONE: Final = 32
"""The first minor version that passes CDI names in the CRI's field alone; earlier ones use an annotation, too."""
SIDECARS: Final = Feature("SidecarContainers", 29, 29)
"""1.28 has the feature gate, but gives the app container the sidecar's device, too."""
_GATES: Final = (CRASH_LOOP, GET, HEALTH, CDI, SIDECARS)


def of(binary: str | Path) -> str:
    """Return the version of a kubelet, such as 1.34.4."""
    return run(str(binary), "--version").split()[-1].removeprefix("v")


def minor(text: str) -> int:
    """Return the minor version of a version such as 1.34.4."""
    return int(text.split(".")[1])


def standin(number: int) -> KubeletVersion:
    """Return the version of the stand-in kubelet that corresponds to a minor version."""
    if number >= 37:
        return KubeletVersion.V1_37
    # A start of 1.31.0 removes only sockets, as since 1.33; 1.31.14 and 1.32 remove all files, as before.
    return KubeletVersion.V1_36 if number >= 33 or number == minor(VERSIONS["1.31"]) else KubeletVersion.V1_32


def dra_standin(number: int) -> KubeletVersion:
    """Return the version of the stand-in kubelet for DRA drivers that corresponds to a minor version."""
    return standin(number) if number >= 36 else KubeletVersion.V1_32


def rejections(error: str) -> tuple[str, ...]:
    """Return the messages of a pod that is rejected for an error: of kubelets since 1.26, and of earlier ones."""
    return rejection(error), rejection(error).replace("Pod was rejected:", "Pod")


def gates(number: int) -> dict[str, bool]:
    """Return the feature gates that a minor version requires for the features."""
    return {feature.name: True for feature in _GATES if feature.first <= number < feature.default}
