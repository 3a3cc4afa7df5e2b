"""The commands of docs/quickstart.md, one after the other, on a node with a real binder driver.

A command that contains ``sudo`` or ``/proc`` runs on the node, all others where kubectl and Helm are. The comment
behind a command is a part of its output.

The node is a guest in QEMU; see :mod:`tests.e2e.cluster.guest`. Its kernel has the driver loaded, and its disk was made
with the image of the same archive, because the guest takes minutes for the import. The section that imports it runs on
a machine without emulation.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from hack.files import write_checksums
from hack.release import source
from hack.release.chart import pack
from tests.e2e.cluster import binder, documented, leftovers
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.documented import Command, commands
from tests.e2e.cluster.guest import SLOW, GuestMachine
from tests.e2e.cluster.machine import Machine
from tests.e2e.cluster.scenes import LABEL
from tests.e2e.common.images import BUSYBOX
from tests.e2e.deploy.parts import PROJECT
from tests.e2e.kubelet.parts import PLUGIN_IMAGE

PAGE: Final = "docs/quickstart.md"
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

PHONES: Final = 10
PHONE_IMAGE: Final = "docker.io/library/busybox:1.37.0-musl"


class Reader(NamedTuple):
    """A person who follows the page, with the files of a release, and with the programs that it expects on a host."""

    files: Path
    programs: Path
    skipped: tuple[str, ...] = (TAINT,)
    """The beginnings of commands that are not run."""

    def follow(self, machine: Machine, section: str) -> None:
        """Run the commands of a section."""
        for command in commands(PAGE):
            if command.section == section and not command.line.startswith(self.skipped):
                self.run(machine, command)

    def run(self, machine: Machine, command: Command) -> None:
        """Run a command, and check that it prints what the comment behind it says."""
        line, expected = (re.sub(r"\bNODE\b", machine.name, text) for text in (command.line, command.output))
        if "sudo " in line or "/proc/" in line:
            path = f"PATH={self.programs}:/usr/sbin:/usr/bin:/sbin:/bin"
            variables = (path, f"CONTAINERD_ADDRESS={machine.runtime.socket}")
            output = machine.run("env", *variables, "sh", "-ec", f"cd {self.files}; {line}", seconds=2 * SLOW)
        else:
            output = documented.shell(line, cwd=self.files, seconds=2 * SLOW)
        printed = " ".join(output.split())
        assert expected in printed, f"{line}: expected {expected!r} in {printed!r}"


@pytest.fixture(scope="module")
def reader(cluster: Cluster) -> Reader:
    """Make the files of the release and the programs."""
    return prepared(cluster)


def prepared(cluster: Cluster) -> Reader:
    """Make the files of the release, with the page's manifest, and the programs."""
    files, programs = cluster.directory / "release", cluster.directory / "host-programs"
    files.mkdir()
    (archive,) = re.findall(r"`(aosp-device-plugin-\S+\.tar)`", documented.page(PAGE))
    shutil.copy(cluster.parts.image, files / archive)
    pack(source.read(PROJECT), files, PLUGIN_IMAGE.rpartition(":")[0], "", "")
    write_checksums(files)
    programs.mkdir()
    (programs / "ctr").symlink_to(cluster.parts.containerd / "ctr")
    (programs / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (programs / "sudo").chmod(0o755)
    (manifest,) = re.findall(r"(?ms)^```yaml\n(.*?)^```$", documented.page(PAGE))
    (files / "phone.yaml").write_text(manifest)
    return Reader(files, programs)


@pytest.fixture(scope="module")
def page_node(cluster: Cluster, reader: Reader, binder_parts: None) -> Iterator[GuestMachine]:
    """Return the page's NODE, the only one whose label the page sets. The guest reads the files when it boots."""
    machine = binder.node(cluster)
    cluster.kubectl("label", "node", "--all", f"{LABEL}-")
    yield machine
    binder.remove_node(cluster)
    cluster.kubectl("label", "node", "--all", f"{LABEL}=true")


def test_complete() -> None:
    """Each command of the page is in a section that these tests run, or that needs k3s, minikube or a registry."""
    assert {command.section for command in commands(PAGE)} == {*SECTIONS, *NOT_RUN}


def test_files(cluster: Cluster, reader: Reader) -> None:
    """The files pass the page's check of their sums."""
    reader.follow(cluster.machine, FILES)


def test_images(cluster: Cluster, reader: Reader) -> None:
    """With the commands for kubeadm, the node has the image under the name of the page."""
    machine = cluster.machine
    machine.runtime.remove(PLUGIN_IMAGE)
    assert PLUGIN_IMAGE not in machine.runtime.images()
    reader.follow(machine, KUBEADM)


def test_host(reader: Reader, page_node: GuestMachine) -> None:
    """On a host with the driver, the page's commands find it, and load it at the next boot."""
    reader.follow(page_node, HOST)


def test_installed(reader: Reader, page_node: GuestMachine) -> None:
    """The chart of the release makes ten phones, and `helm test` opens one."""
    assert PLUGIN_IMAGE in page_node.runtime.images()
    reader.follow(page_node, PLUGIN)
    mounted = binder.mounted(page_node)
    assert len(mounted) == PHONES, f"{mounted}"


def test_phone(reader: Reader, page_node: GuestMachine) -> None:
    """The page's pod gets a phone; its log and the plugin's status show it.

    The pod's image has its name by a tag, because the cluster has no registry.
    """
    page_node.runtime.tag(BUSYBOX, PHONE_IMAGE)
    reader.follow(page_node, POD)


def test_uninstalled(cluster: Cluster, reader: Reader, page_node: GuestMachine) -> None:
    """After the plugin is uninstalled, nothing of the page remains on the node and in the API server."""
    for line in UNINSTALL:
        reader.run(page_node, Command("", line))
    leftovers.require_none(cluster)
