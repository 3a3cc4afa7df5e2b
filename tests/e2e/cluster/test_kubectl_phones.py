"""``kubectl phones`` on phones that really run, with problems that really exist."""

import json
import re
import subprocess
import sys
import textwrap
from typing import Any, Final, NamedTuple

import yaml

from tests.e2e.cluster import phones, plugin
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.plugin import PHONE
from tests.e2e.cluster.scenes import PHONES, prepare, without
from tests.e2e.common.waiting import PATIENCE, until
from tests.e2e.deploy.parts import PROJECT
from tests.e2e.kubelet.pods import PREFIX

READER: Final = "reader"
_PROGRAM: Final = f"""\
#!{sys.executable}
import sys
sys.path.insert(0, {str(PROJECT)!r})
from kubectl_phones.__main__ import main
sys.exit(main())
"""


class Result(NamedTuple):
    """What the command has printed."""

    code: int
    document: dict[str, Any]
    errors: list[str]


def show(cluster: Cluster, *options: str) -> Result:
    """Run ``kubectl phones --check --output json``, which kubectl finds in PATH."""
    program = cluster.programs / "kubectl-phones"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    command = ["kubectl", "phones", "--check", "--output=json", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert result.stdout, f"exit code {result.returncode}: {result.stderr}"
    return Result(result.returncode, json.loads(result.stdout), result.stderr.splitlines())


def wait_well(cluster: Cluster) -> Result:
    """Wait until nothing is wrong, and return the result."""

    def reached() -> Result:
        result = show(cluster)
        assert (result.code, result.document["problems"], result.errors) == (0, [], []), f"{result}"
        return result

    return until(reached, "kubectl phones reports no problem", seconds=4 * PATIENCE)


def test_shown(cluster: Cluster) -> None:
    """kubectl phones shows each phone with pod, node and state; nothing is wrong."""
    prepare(cluster)
    pods = phones.run(cluster, phones.deployment("web", 2))
    result = wait_well(cluster)
    # A resource of an earlier group stays in the Node's status with 0 devices.
    (node,) = [row for row in result.document["nodes"] if row["resource"] == PHONE]
    assert node["node"] == cluster.machine.name, f"{node}"
    assert (node["phones"], node["allocatable"], node["used"]) == (PHONES, PHONES, 2), f"{node}"
    assert node["plugin"] == "ready", f"{node}"
    rows = [(row["pod"], row["node"], row["state"]) for row in result.document["phones"] if row["pod"]]
    expected = sorted((pod["metadata"]["name"], cluster.machine.name, "running") for pod in pods)
    assert sorted(rows) == expected, f"{rows}"


def test_unhealthy(cluster: Cluster) -> None:
    """kubectl phones counts an unhealthy phone, and reports no problem after its device is back."""
    prepare(cluster)
    with without(cluster, f"{PREFIX}0"):

        def reached() -> bool:
            result = show(cluster)
            found = [(each["node"], each["kind"], each["detail"]) for each in result.document["problems"]]
            assert found == [(cluster.machine.name, "unhealthy", f"1 of {PHONES} phones")], found
            return result.code == 1

        until(reached, "kubectl phones reports it", seconds=4 * PATIENCE)
    wait_well(cluster)


def test_rights(cluster: Cluster) -> None:
    """The documented rights are enough for kubectl phones, and each missing one is one line."""
    prepare(cluster)
    kubeconfig = _reader(cluster)
    result = show(cluster, f"--kubeconfig={kubeconfig}")
    assert (result.code, result.document["problems"], result.errors) == (0, [], []), f"{result}"
    cluster.kubectl("delete", "rolebinding", READER)
    lost = "kubectl-phones: not shown: what plugins report about their nodes: Error from server (Forbidden)"

    def reached() -> Result:
        result = show(cluster, f"--kubeconfig={kubeconfig}")
        (line,) = result.errors
        assert line.startswith(lost), line
        assert result.document["totals"]["used"] == 2, f"{result.document['totals']}"
        return result

    until(reached, "the missing right is named")
    cluster.kubectl("delete", "clusterrolebinding,clusterrole,role", "phones-reader", READER, "--ignore-not-found")
    cluster.kubectl("delete", "serviceaccount", READER)
    phones.remove(cluster, "Deployment", "web")
    plugin.uninstall(cluster)


def _reader(cluster: Cluster) -> str:
    """Return a kubeconfig of a service account with the rights that its README lists."""
    text = (PROJECT / "kubectl_phones" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"(?:^    .*\n)*^    kind: ClusterRole\n(?:(?:    .*)?\n)+?(?=\S)", text, re.MULTILINE)
    cluster.kubectl("apply", "--filename=-", text=textwrap.dedent(block))
    cluster.kubectl("create", "serviceaccount", READER)
    account = f"--serviceaccount=default:{READER}"
    cluster.kubectl("create", "clusterrolebinding", READER, "--clusterrole=phones-reader", account)
    cluster.kubectl("create", "rolebinding", READER, "--role=phones-reader", account, "--namespace=default")
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": cluster.kubectl("create", "token", READER).strip()}
    path = cluster.directory / "reader.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return str(path)
