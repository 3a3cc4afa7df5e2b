"""Items: the commands of docs/quickstart.md, one after the other, on a node with a real binder driver.

The node is a guest in QEMU; see :mod:`tests.e2e.cluster.guest`. Its kernel has the driver loaded, and its disk was made
with the image of the same archive, because the guest takes minutes for the import. The section that imports it runs on
a machine without emulation.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final

from hack.files import write_checksums
from hack.release import source
from hack.release.chart import pack
from tests.e2e.cluster import documented, leftovers, quickstart
from tests.e2e.cluster.binder import mounted, node, remove_node
from tests.e2e.cluster.guest import SLOW
from tests.e2e.cluster.items import Items
from tests.e2e.kubelet.archive import BUSYBOX
from tests.e2e.kubelet.parts import PLUGIN_IMAGE, PROJECT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.cluster.cluster import Cluster
    from tests.e2e.cluster.machine import Machine

item = Items()

FILES: Final = "1. The files"
HOST: Final = "2. The host"
KUBEADM: Final = "kubeadm"
PLUGIN: Final = "4. The plugin"
POD: Final = "5. A pod with a phone"
SECTIONS: Final = (FILES, HOST, KUBEADM, PLUGIN, POD)
"""The sections whose commands run."""
NOT_RUN: Final = ("k3s", "minikube", "With a registry")
TAINT: Final = "kubectl taint "
"""A command that is not run, because the node does not have the taint."""

UNINSTALL: Final = (
    "kubectl delete pod phone",
    "helm uninstall aosp-device-plugin --namespace kube-system --wait",
    "kubectl label node NODE aosp.io/binder-",
    "awk '$1 ~ /^aosp-(phone|claim)$/ {print $2}' /proc/mounts | xargs -r sudo umount",
    "sudo rm -f /etc/modules-load.d/binder_linux.conf",
)
"""Commands that undo those of the page on its only node, as a reboot and docs/deploy.md do."""

_PHONES: Final = 10
_PHONE_IMAGE: Final = "docker.io/library/busybox:1.37.0-musl"
_LABEL: Final = "aosp.io/binder"


@item("Each command of the page is in a section that these items run, or that needs k3s, minikube or a registry")
def complete(_: Cluster) -> None:
    assert {command.section for command in quickstart.commands()} == {*SECTIONS, *NOT_RUN}


@item("The files pass the page's check of their sums")
def files(cluster: Cluster) -> None:
    _follow(cluster, cluster.machine, FILES)


@item("With the commands for kubeadm, the node has the image under the name of the page")
def images(cluster: Cluster) -> None:
    machine = cluster.machine
    machine.runtime.remove(PLUGIN_IMAGE)
    assert PLUGIN_IMAGE not in machine.runtime.images()
    _follow(cluster, machine, KUBEADM)


@item("On a host with the driver, the page's commands find it, and load it at the next boot")
def host(cluster: Cluster) -> None:
    _follow(cluster, _node(cluster), HOST)


@item("The chart of the release makes ten phones, and `helm test` opens one")
def installed(cluster: Cluster) -> None:
    machine = _node(cluster)
    assert PLUGIN_IMAGE in machine.runtime.images()
    _follow(cluster, machine, PLUGIN)
    assert len(mounted(node(cluster))) == _PHONES, f"{mounted(node(cluster))}"


@item("The page's pod gets a phone; its log and the plugin's status show it")
def phone(cluster: Cluster) -> None:
    """The pod's image has its name by a tag, because the cluster has no registry."""
    machine = _node(cluster)
    machine.runtime.tag(BUSYBOX, _PHONE_IMAGE)
    (_release(cluster) / "phone.yaml").write_text(quickstart.manifest())
    _follow(cluster, machine, POD)


@item("After the plugin is uninstalled, nothing of the page remains on the node and in the API server")
def uninstalled(cluster: Cluster) -> None:
    for line in UNINSTALL:
        _run(cluster, _node(cluster), quickstart.Command("", line, ""))
    leftovers.require_none(cluster)
    remove_node(cluster)
    cluster.kubectl("label", "node", cluster.machine.name, f"{_LABEL}=true")  # for the groups that follow


def _node(cluster: Cluster) -> Machine:
    """Return the page's NODE, the only one whose label the page sets; boot it if there is none."""
    # Before the guest reads the directories.
    _release(cluster)
    _programs(cluster)
    booted = len(cluster.machines)
    machine = node(cluster)
    if len(cluster.machines) > booted:
        cluster.kubectl("label", "node", "--all", f"{_LABEL}-")
    return machine


def _release(cluster: Cluster) -> Path:
    """Return the directory with the files of a release that the page uses."""
    directory = cluster.directory / "release"
    if not directory.exists():
        directory.mkdir()
        (archive,) = re.findall(r"`(aosp-device-plugin-\S+\.tar)`", documented.page(quickstart.PAGE))
        shutil.copy(cluster.parts.image, directory / archive)
        pack(source.read(PROJECT), directory, PLUGIN_IMAGE.rpartition(":")[0], "", "")
        write_checksums(directory)
    return directory


def _programs(cluster: Cluster) -> Path:
    """Return the directory with the programs that the page expects on a host."""
    directory = cluster.directory / "host-programs"
    if not directory.exists():
        directory.mkdir()
        (directory / "ctr").symlink_to(cluster.parts.containerd / "ctr")
        (directory / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
        (directory / "sudo").chmod(0o755)
    return directory


def _follow(cluster: Cluster, machine: Machine, section: str) -> None:
    """Run the commands of a section."""
    for command in quickstart.commands():
        if command.section == section and not command.line.startswith(TAINT):
            _run(cluster, machine, command)


def _run(cluster: Cluster, machine: Machine, command: quickstart.Command) -> None:
    """Run a command, and check that it prints what the comment behind it says."""
    directory, programs = _release(cluster), _programs(cluster)
    line = re.sub(r"\bNODE\b", machine.name, command.line)
    if command.on_node:
        path = f"PATH={programs}:/usr/sbin:/usr/bin:/sbin:/bin"
        variables = (path, f"CONTAINERD_ADDRESS={machine.runtime.socket}")
        output = machine.run("env", *variables, "sh", "-ec", f"cd {directory}; {line}", seconds=2 * SLOW)
    else:
        output = documented.shell(cluster, line, cwd=directory, seconds=2 * SLOW)
    printed = " ".join(output.split())
    assert command.output in printed, f"{line}: expected {command.output!r} in {printed!r}"
