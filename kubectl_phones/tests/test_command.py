"""``kubectl phones`` as a process, with a stand-in for kubectl."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kubectl_phones.kubectl import PAGE
from kubectl_phones.tests import stand_in_kubectl
from kubectl_phones.tests.clusters import claim, node, plugin_pod, pod

PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
SETS = "/apis/apps/v1/daemonsets"
DRA = "/apis/resource.k8s.io/v1"
EVENTS = "/api/v1/namespaces/default/events"
FORBIDDEN = 'Error from server (Forbidden): things is forbidden: User "x" cannot list resource "things"'
COMMAND = [sys.executable, "-m", "kubectl_phones"]


class Cluster:
    """The answers of a cluster, and runs of the command."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        programs = directory / "bin"
        programs.mkdir()
        stand_in_kubectl.install(programs)
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            stand_in_kubectl.DIRECTORY: str(directory),
        }

    def answer(self, path: str, content: object) -> None:
        """Answer requests for a path: with objects, or with an error of kubectl."""
        stand_in_kubectl.answer(self.directory, path, content)

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        return subprocess.run(  # noqa: S603 - this project's command
            [*COMMAND, *options], env=self.environment, capture_output=True, text=True, timeout=50, check=False
        )

    @property
    def log(self) -> list[str]:
        """The arguments of each process of kubectl."""
        path = self.directory / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Return a cluster with a node with an unhealthy phone, its plugin, and a pod with a phone."""
    made = Cluster(tmp_path)
    made.answer(NODES, [node(allocatable=3)])
    made.answer(PODS, [pod("p1"), plugin_pod()])
    made.answer(SETS, [])
    made.answer(EVENTS, [])
    return made


def test_everything_that_can_be_read_is_shown_with_problems_first(cluster: Cluster) -> None:
    """Each list is one request, and nothing else is run. The API server has no DRA, which is no error."""
    result = cluster.run()
    assert (result.returncode, result.stderr) == (0, "")
    text = result.stdout.splitlines()
    assert text[0] == "4 phones on 1 nodes: 3 allocatable, 1 used, 1 unhealthy, 0 waiting"
    assert text[3].split() == ["n1", "unhealthy", "-", "1", "of", "4", "phones"]
    assert text[-1].split()[:3] == ["a", "p1", "n1"]
    assert [line.partition("?")[0].startswith("get --raw /api") for line in cluster.log] == [True] * 8


def test_a_list_is_read_page_by_page(cluster: Cluster) -> None:
    cluster.answer(NODES, [node(f"n{number}") for number in range(2 * PAGE + 1)])
    assert f" on {2 * PAGE + 1:,} nodes" in cluster.run().stdout
    assert len([line for line in cluster.log if NODES in line]) == 3


def test_options_reach_kubectl_and_the_api_server(cluster: Cluster) -> None:
    cluster.run("--context", "c1", "--kubeconfig=/k", "-n", "team", "--node", "n1")
    query = f"fieldSelector=spec.nodeName%3Dn1&limit={PAGE}"
    assert f"get --raw /api/v1/namespaces/team/pods?{query} --context=c1 --kubeconfig=/k" in cluster.log
    assert any(f"{NODES}?fieldSelector=metadata.name%3Dn1&" in line for line in cluster.log)


@pytest.mark.parametrize(
    ("path", "what", "shown"),
    [
        (NODES, "nodes", "p1"),
        (SETS, "nodes that never had a plugin", "p1"),
        (EVENTS, "what plugins report about their nodes", "p1"),
        (f"{DRA}/resourceclaims", "pods with phones of DRA", "p1"),
        (f"{DRA}/resourceslices", "phones of DRA", "p1"),
    ],
)
def test_a_missing_right_is_one_line_and_the_rest_is_shown(cluster: Cluster, path: str, what: str, shown: str) -> None:
    cluster.answer(path, FORBIDDEN)
    result = cluster.run()
    assert (result.returncode, result.stderr) == (0, f"kubectl-phones: not shown: {what}: {FORBIDDEN}\n")
    assert shown in result.stdout


def test_parameters_that_are_nested_too_deeply_for_a_parser_hide_no_claim(cluster: Cluster) -> None:
    """Any user who may create claims chooses them, also those for other drivers."""
    nested = claim("c1", "phone7", "p1")
    nested["spec"] = {"devices": {"config": [{"opaque": {"parameters": {"a": [stand_in_kubectl.NESTED, '"}]']}}}]}}
    pods = [pod(name, phones=0, spec={"resourceClaims": [{"name": "phone"}]}) for name in ("p1", "p2")]
    cluster.answer(PODS, pods)
    cluster.answer(f"{DRA}/resourceclaims", [nested, claim("c2", "phone8", "p2")])
    result = cluster.run()
    assert (result.returncode, result.stderr) == (0, "")
    assert [line.split()[3] for line in result.stdout.splitlines()[-2:]] == ["phone7", "phone8"]


def test_an_error_does_not_control_the_terminal(cluster: Cluster) -> None:
    cluster.answer(SETS, "Error from server: \033]0;title\a\x9b1m\N{RIGHT-TO-LEFT OVERRIDE}")
    assert cluster.run().stderr.endswith("Error from server: \ufffd]0;title\ufffd\ufffd1m\ufffd\n")


def test_the_exit_code_of_check(cluster: Cluster) -> None:
    assert cluster.run("--check").returncode == 1
    cluster.answer(NODES, [node()])
    assert cluster.run("--check").returncode == 0
    cluster.answer(NODES, FORBIDDEN)
    assert cluster.run("--check").returncode == 2


def test_json_is_the_document(cluster: Cluster) -> None:
    document = json.loads(cluster.run("-o", "json").stdout)
    assert document["totals"]["phones"] == 4
    assert [problem["kind"] for problem in document["problems"]] == ["unhealthy"]
    assert document["missing"] == []


@pytest.mark.parametrize("options", [("--output=xml",), ("--timeout",), ("--node", ""), ("--resource=",)])
def test_invalid_usage_is_code_2(cluster: Cluster, options: tuple[str, ...]) -> None:
    result = cluster.run(*options)
    assert (result.returncode, result.stdout) == (2, "")
    assert "kubectl-phones: error: " in result.stderr
    assert cluster.log == []


def test_a_cluster_that_cannot_be_reached_is_one_line_and_code_2(cluster: Cluster) -> None:
    text = "Unable to connect to the server: dial tcp 10.0.0.1:6443: connect: connection refused"
    for path in (NODES, PODS, SETS, EVENTS):
        cluster.answer(path, text)
    result = cluster.run()
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"kubectl-phones: {text}\n")


def test_a_host_without_kubectl_is_an_error(cluster: Cluster) -> None:
    cluster.environment["PATH"] = "/nonexistent"
    result = cluster.run()
    assert (result.returncode, result.stderr) == (2, "kubectl-phones: kubectl is not in PATH\n")


def test_a_reader_that_ends_early_is_no_traceback(cluster: Cluster) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(  # noqa: S603 - this project's command
        COMMAND, env=cluster.environment, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=50, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_terminal_gets_lines_of_its_width(cluster: Cluster) -> None:
    cluster.answer(NODES, [node("phone-host-1.rack-12.region-7.example.com" * 3)])
    reading, terminal = os.openpty()
    environment = cluster.environment | {"COLUMNS": "60", "LINES": "24"}
    subprocess.run(COMMAND, env=environment, stdout=terminal, timeout=50, check=True)  # noqa: S603 - as above
    os.close(terminal)
    lines = os.read(reading, 65536).decode().splitlines()
    os.close(reading)
    assert max(map(len, lines)) == 60
    assert any("…" in line for line in lines)
