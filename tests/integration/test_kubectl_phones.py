"""``kubectl phones`` as a process, with a stand-in for ``kubectl proxy``."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from google.protobuf.json_format import ParseDict

from aosp_plugin.framework.api import objects_pb2
from tests import stand_in_kubectl

if TYPE_CHECKING:
    from google.protobuf.message import Message

PROTOBUF = "application/vnd.kubernetes.protobuf"
PODS = "/api/v1/pods"
PROXY = "/api/v1/namespaces/kube-system/pods/plugin-n1:9478/proxy"
DRA = "/apis/resource.k8s.io/v1"
READY = {"type": "Ready", "status": "True"}
METRICS = """\
aosp_plugin_devices{health="healthy",reason="",resource="aosp.io/phone"} 3.0
aosp_plugin_devices{health="unhealthy",reason="missing",resource="aosp.io/phone"} 1.0
aosp_plugin_kubelet_allocatable{resource="aosp.io/phone"} 3.0
aosp_plugin_registered{resource="aosp.io/phone"} 1.0
"""


_PROGRAM = """\
import sys
from aosp_plugin.cli.fleet.command import main
if seconds := float(sys.argv.pop(1)):
    from aosp_plugin.cli.fleet import asking
    asking.PROBE_SECONDS = seconds
sys.exit(main())
"""


class Result(NamedTuple):
    """What the command has printed."""

    code: int
    out: str
    err: str


class Cluster:
    """The answers of a cluster, and runs of the command."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.probe_seconds = 30.0
        """How long a plugin may take; 0 is the default, within which a busy machine may not answer."""
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        programs = directory / "bin"
        programs.mkdir()
        stand_in_kubectl.install(programs)
        self.environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "TMPDIR": str(self.temporary),
            stand_in_kubectl.DIRECTORY: str(directory),
        }

    def answer(self, path: str, body: str, **fields: Any) -> None:
        """Answer requests for a path with text."""
        stand_in_kubectl.answer(self.directory, path, body.encode(), **fields)

    def objects(self, path: str, *items: Message) -> None:
        """Answer requests for a list."""
        raw = objects_pb2.List(items=[item.SerializeToString() for item in items]).SerializeToString()
        envelope = b"k8s\0" + objects_pb2.Envelope(raw=raw).SerializeToString()
        stand_in_kubectl.answer(self.directory, path, envelope, kind=PROTOBUF)

    def forbid(self, path: str) -> None:
        """Answer requests for a path as the API server does if the right is missing."""
        status = objects_pb2.Status(message="nodes is forbidden", reason="Forbidden", code=403)
        body = b"k8s\0" + objects_pb2.Envelope(raw=status.SerializeToString()).SerializeToString()
        stand_in_kubectl.answer(self.directory, path, body, kind=PROTOBUF, status=403)

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start the command."""
        return subprocess.Popen(  # noqa: S603 - this project's command
            [sys.executable, "-c", _PROGRAM, str(self.probe_seconds), *options],
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *options: str) -> Result:
        """Run the command to its end, and check that it leaves no process and no file."""
        process = self.start(*options)
        out, err = process.communicate(timeout=50)
        self.assert_nothing_left()
        return Result(process.returncode, out, err)

    @property
    def log(self) -> list[str]:
        """The arguments of kubectl after its process ID, and the requests."""
        path = self.directory / "log"
        return path.read_text().splitlines() if path.exists() else []

    def assert_nothing_left(self) -> None:
        """Check that kubectl has ended, and that its directory is gone."""
        assert list(self.temporary.iterdir()) == []
        for line in self.log:
            pid = line.split()[0]
            assert not (pid.isdecimal() and Path("/proc", pid).exists()), line


def pod(name: str, namespace: str = "a", *, plugin: bool = False, ready: bool = True) -> Message:
    """Return a pod with a phone, or of the plugin."""
    owners = [{"kind": "DaemonSet", "name": "aosp-device-plugin"}] if plugin else []
    limits = {} if plugin else {"aosp.io/phone": {"string": "1"}}
    message = {
        "metadata": {"name": name, "namespace": namespace, "owner_references": owners},
        "spec": {"node_name": "n1", "containers": [{"resources": {"limits": limits}}]},
        "status": {
            "phase": "Running",
            "pod_ip": "10.0.0.1",
            "conditions": [READY] if ready else [{"type": "Ready", "status": "False"}],
            "container_statuses": [{"ready": ready}],
        },
    }
    return ParseDict(message, objects_pb2.Pod())


def node(allocatable: int = 3) -> Message:
    """Return a node with four phones."""
    amounts = {"capacity": {"aosp.io/phone": {"string": "4"}}}
    free = {"allocatable": {"aosp.io/phone": {"string": str(allocatable)}}}
    message = {"metadata": {"name": "n1"}, "status": {**amounts, **free, "conditions": [READY]}}
    return ParseDict(message, objects_pb2.Node())


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Return a cluster with a node, its plugin, whose /status is on its loopback address, and a phone."""
    made = Cluster(tmp_path)
    made.objects("/api/v1/nodes", node())
    made.objects(PODS, pod("p1"), pod("plugin-n1", "kube-system", plugin=True))
    made.objects("/apis/apps/v1/daemonsets")
    made.answer(f"{PROXY}/metrics", METRICS)
    return made


def test_everything_that_can_be_read_is_shown_and_nothing_is_left(cluster: Cluster) -> None:
    result = cluster.run()
    assert (result.code, result.err) == (0, "")
    text = result.out.splitlines()
    assert text[0] == "4 phones on 1 nodes: 3 allocatable, 1 used, 1 unhealthy, 0 waiting"
    assert text[3].split() == ["n1", "unhealthy", "-", "1", "of", "4", "phones:", "1", "missing"]
    assert text[-1].split()[:3] == ["a", "p1", "n1"]
    assert "\x1b" not in result.out


def test_lists_come_from_the_watch_cache_and_the_plugin_is_asked_once_for_its_status(cluster: Cluster) -> None:
    cluster.run()
    _, *requests = cluster.log
    lists = [request for request in requests if "/proxy/" not in request]
    assert len(lists) == 7
    assert all("resourceVersion=0" in request for request in lists)
    assert sorted(request for request in requests if request not in lists) == [f"{PROXY}/metrics", f"{PROXY}/status"]


def test_options_reach_kubectl_and_the_api_server(cluster: Cluster) -> None:
    result = cluster.run("--context", "c1", "--kubeconfig=/k", "-n", "team", "-l", "app in (x)", "--node", "n1")
    first, *requests = cluster.log
    words = first.split()[1:]
    assert words[0] == "proxy"
    assert words[-2:] == ["--context=c1", "--kubeconfig=/k"]
    assert "--reject-methods=^(POST|PUT|PATCH|DELETE)$" in words
    query = "fieldSelector=spec.nodeName%3Dn1&labelSelector=app%20in%20%28x%29&resourceVersion=0"
    assert f"/api/v1/namespaces/team/pods?{query}" in requests
    assert "/api/v1/nodes?fieldSelector=metadata.name%3Dn1&resourceVersion=0" in requests
    assert result.code == 0  # the namespace is not there: no such path


@pytest.mark.parametrize(
    ("path", "line", "shown"),
    [
        ("/api/v1/nodes", "missing right: list nodes; not shown: capacity and readiness of nodes", "p1"),
        ("/apis/apps/v1/daemonsets", "missing right: list daemonsets.apps in all namespaces; not shown: nodes", "p1"),
        (f"{PROXY}/status", "missing right: get pods/proxy in namespace kube-system; not shown: what plugins", "p1"),
        (PODS, "missing right: list pods in all namespaces; not shown: phones of pods", "n1"),
        (f"{DRA}/resourceclaims", "missing right: list resourceclaims.resource.k8s.io in all namespaces;", "p1"),
        (f"{DRA}/resourceslices", "missing right: list resourceslices.resource.k8s.io; not shown: phones of DRA", "p1"),
    ],
)
def test_a_missing_right_is_one_line_and_the_rest_is_shown(cluster: Cluster, path: str, line: str, shown: str) -> None:
    cluster.forbid(path)
    result = cluster.run()
    assert result.code == 0
    (printed,) = result.err.splitlines()
    assert printed.startswith(f"kubectl-phones: {line}")
    assert shown in result.out


def test_a_plugin_that_is_not_ready_is_asked_why(cluster: Cluster) -> None:
    cluster.objects(PODS, pod("p1"), pod("plugin-n1", "kube-system", plugin=True, ready=False))
    cluster.answer(f"{PROXY}/readyz", "waiting for kubelet\n", status=503)
    result = cluster.run("--unhealthy")
    assert result.err == ""
    (line,) = (line for line in result.out.splitlines() if "plugin-not-ready" in line)
    assert line.endswith("waiting for kubelet")


def test_a_plugin_that_cannot_be_reached_is_one_line(cluster: Cluster) -> None:
    status = json.dumps({"kind": "Status", "message": "error trying to reach service", "reason": "ServiceUnavailable"})
    for name in ("status", "metrics", "readyz"):
        cluster.answer(f"{PROXY}/{name}", status, status=503, kind="application/json")
    result = cluster.run()
    (line,) = result.err.splitlines()
    assert "1 of 1 plugins do not answer the API server; not shown: what plugins report" in line
    assert "error trying to reach service" in line
    assert "plugin-not-ready" not in result.out


def test_plugins_whose_packets_are_dropped_delay_the_output_by_a_limited_time(cluster: Cluster) -> None:
    cluster.probe_seconds = 0
    cluster.answer(f"{PROXY}/status", "", status=0)
    started = time.monotonic()
    result = cluster.run()
    assert time.monotonic() - started < 30
    assert "a NetworkPolicy may drop the API server's packets" in result.err
    assert "p1" in result.out


def test_the_exit_code_of_check(cluster: Cluster) -> None:
    assert cluster.run("--check").code == 1
    cluster.objects("/api/v1/nodes", node(4))
    missing = '"missing",resource="aosp.io/phone"}'
    well = METRICS.replace("3.0", "4.0").replace(f"{missing} 1.0", f"{missing} 0.0")
    cluster.answer(f"{PROXY}/metrics", well)
    assert cluster.run("--check").code == 0
    cluster.forbid("/api/v1/nodes")
    assert cluster.run("--check").code == 2


def test_json_is_the_document(cluster: Cluster) -> None:
    result = cluster.run("-o", "json")
    document = json.loads(result.out)
    assert document["totals"]["phones"] == 4
    assert [problem["kind"] for problem in document["problems"]] == ["unhealthy"]
    assert document["missing"] == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--context=absent",), 'kubectl proxy did not start: context "absent" does not exist'),
        (("--output=xml",), "Invalid value for '-o' / '--output'"),
        (("--timeout",), "No such option"),
        (("--node", ""), "--node: a name is required"),
        (("--resource=",), "--resource: a name is required"),
    ],
)
def test_usage_and_kubeconfig_errors_are_one_line_and_code_2(
    cluster: Cluster, options: tuple[str, ...], text: str
) -> None:
    result = cluster.run(*options)
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert text in line


def test_a_cluster_that_cannot_be_reached_is_an_error(cluster: Cluster) -> None:
    for path in ("/api/v1/nodes", PODS, "/apis/apps/v1/daemonsets", f"{DRA}/resourceslices"):
        cluster.answer(path, "dial tcp 10.0.0.1:6443: connect: connection refused\n", status=502)
    result = cluster.run()
    assert (result.code, result.out) == (2, "")
    assert "connection refused" in result.err


def test_a_kubeconfig_without_a_cluster_is_named(cluster: Cluster) -> None:
    """Then kubectl asks this address."""
    for path in ("/api/v1/nodes", PODS, "/apis/apps/v1/daemonsets", f"{DRA}/resourceslices"):
        cluster.answer(path, "dial tcp 127.0.0.1:8080: connect: connection refused\n", status=500)
    result = cluster.run()
    assert result.code == 2
    assert result.err.endswith("; kubectl asks localhost:8080 if its kubeconfig names no cluster\n")


def test_a_host_without_kubectl_is_an_error(cluster: Cluster) -> None:
    cluster.environment["PATH"] = "/nonexistent"
    result = cluster.run()
    assert result.code == 2
    assert "kubectl is not in PATH" in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_kubectl_and_removes_its_directory(cluster: Cluster, number: signal.Signals) -> None:
    cluster.answer(PODS, "", status=0)  # never answered
    process = cluster.start()
    deadline = time.monotonic() + 30
    while not any(line.startswith(PODS) for line in cluster.log):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    (directory,) = cluster.temporary.iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number
    cluster.assert_nothing_left()


@pytest.mark.parametrize(("options", "code"), [(("--check",), 1), (("--output=xml",), 2), ((), 0)])
def test_the_installed_program_prints_everything_and_has_the_exit_code(
    cluster: Cluster, options: tuple[str, ...], code: int
) -> None:
    program = "from aosp_plugin.cli.fleet.command import script; script()"
    command = [sys.executable, "-c", program, *options]
    result = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=50, check=False)  # noqa: S603 - as above
    assert result.returncode == code
    assert ("p1" in result.stdout) is (code != 2)
    assert bool(result.stderr) is (code == 2)
    cluster.assert_nothing_left()


def test_a_reader_that_ends_early_is_no_traceback(cluster: Cluster) -> None:
    program = "from aosp_plugin.cli.fleet.command import script; script()"
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", program]
    result = subprocess.run(  # noqa: S603 - as above
        command, env=cluster.environment, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=50, check=False
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, "")
    cluster.assert_nothing_left()


def test_help_starts_nothing(cluster: Cluster) -> None:
    assert "Show the phones of a cluster" in cluster.run("--help").out
    assert cluster.log == []
