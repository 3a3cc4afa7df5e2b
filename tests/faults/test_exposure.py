"""What other pods reach of the plugin's pod: the plugin runs with the arguments and variables of the manifests.

Two network namespaces stand for two pods, joined by a veth pair. A NetworkPolicy is not part of it: it restricts the
port further, if the cluster implements it.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from kubelet_standin import Kubelet
from tests.support import PATIENCE, DeviceDirectory, listed

DEPLOY = Path(__file__).parents[2] / "deploy"
(CONTAINER,) = yaml.safe_load((DEPLOY / "base/daemonset.yaml").read_text())["spec"]["template"]["spec"]["containers"]
POD_IP, CLIENT_IP = "10.77.0.2", "10.77.0.1"
NAMESPACES = ("unshare", "--user", "--map-root-user", "--net")
GET = """
import http.client, json, sys
statuses = {}
for url in sys.argv[1:]:
    host, path = url.split("/", 1)
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("GET", f"/{path}")
        statuses[url] = connection.getresponse().status
    except ConnectionRefusedError:
        statuses[url] = "refused"
    connection.close()
print(json.dumps(statuses))
"""


def possible() -> bool:
    """Return whether this user may create network namespaces and a veth pair."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    script = "ip link add client type veth peer name pod"
    done = subprocess.run([*NAMESPACES, "sh", "-c", script], capture_output=True, check=False)  # noqa: S603 - our own
    return done.returncode == 0


pytestmark = pytest.mark.skipif(not possible(), reason="requires network namespaces, and ip of iproute2")


class Namespace(NamedTuple):
    """The network of a pod, kept by a process."""

    pid: int

    def command(self, *words: str) -> list[str]:
        """Return a command that runs in it."""
        return ["nsenter", f"--target={self.pid}", "--user", "--net", "--preserve-credentials", *words]

    def run(self, *words: str) -> None:
        """Run a command in it."""
        subprocess.run(self.command(*words), check=True)  # noqa: S603 - our own

    async def get(self, *urls: str) -> dict[str, Any]:
        """Request ADDRESS/PATH from inside; return the HTTP status of each, or "refused"."""
        command = self.command(sys.executable, "-c", GET, *urls)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        answer: dict[str, Any] = json.loads(out)
        return answer


@contextlib.contextmanager
def namespace(*command: str) -> Iterator[Namespace]:
    """Keep the namespaces in which ``command`` starts a shell, with loopback up."""
    # The shell reads: its end is that of the pipe, so it never outlives the test.
    with subprocess.Popen(  # noqa: S603 - our own
        [*command, "sh", "-c", "ip link set lo up; echo $$; read _"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        yield Namespace(int(process.stdout.readline()))
        process.communicate(b"\n")


@pytest.fixture
def other_pod() -> Iterator[Namespace]:
    """Create the network of another pod."""
    with namespace(*NAMESPACES) as namespaces:
        yield namespaces


@pytest.fixture
def pod(other_pod: Namespace) -> Iterator[Namespace]:
    """Create the network of the plugin's pod, which the other pod reaches at POD_IP."""
    with namespace(*other_pod.command("unshare", "--net")) as namespaces:
        link = f"ip link add client type veth peer name eth0 netns {namespaces.pid}"
        other_pod.run("sh", "-ec", f"{link}; ip addr add {CLIENT_IP}/24 dev client; ip link set client up")
        namespaces.run("sh", "-ec", f"ip addr add {POD_IP}/24 dev eth0; ip link set eth0 up")
        yield namespaces


class Plugin(NamedTuple):
    """The plugin in its pod."""

    pod: Namespace
    environment: dict[str, str]

    async def status(self) -> tuple[int | None, str]:
        """Run ``kubectl exec POD -- aosp-plugin status``: in the pod's namespaces, with the container's variables."""
        command = self.pod.command(sys.executable, "-m", "aosp_plugin", "status")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, env=self.environment, stdout=pipe, stderr=pipe)
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
        return process.returncode, (out + err).decode()


@pytest.fixture
async def plugin(pod: Namespace, kubelet_dir: str, tmp_path: Path) -> AsyncIterator[Plugin]:
    """Start the plugin as the manifest does. Only paths differ, and the devices are files."""
    (tmp_path / "root").mkdir()
    DeviceDirectory(tmp_path / "root/dev").add(0, 1, 2)
    text = (DEPLOY / "base/config.yaml").read_text().replace("verify: binder", "verify: file")
    (tmp_path / "config.yaml").write_text(f"{text}\nkubelet_dir: {kubelet_dir}\n")
    values = {variable["name"]: variable.get("value", "") for variable in CONTAINER["env"]}
    values |= {"AOSP_PLUGIN_CONFIG": str(tmp_path / "config.yaml"), "POD_IP": POD_IP, "NODE_NAME": "node-7"}
    environment = os.environ | {name: value.replace("$(POD_IP)", POD_IP) for name, value in values.items()}
    arguments = [argument.replace("=/host", f"={tmp_path}/root") for argument in CONTAINER["args"]]
    command = pod.command(sys.executable, "-m", "aosp_plugin", *arguments)
    async with Kubelet(kubelet_dir) as kubelet:
        process = await asyncio.create_subprocess_exec(*command, env=environment)
        try:
            await listed(kubelet, 3)
            yield Plugin(pod, environment)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait_for(process.wait(), PATIENCE)


PORT = CONTAINER["ports"][0]["containerPort"]
PUBLIC = [f"{POD_IP}:{PORT}/{path}" for path in ("metrics", "healthz", "readyz")]
PRIVATE = [f"{POD_IP}:{PORT}/{path}" for path in ("", "status", "page/main.js")]
FORWARDED = [f"127.0.0.1:{PORT}/{path}" for path in ("", "status")]


async def test_other_pods_reach_probes_and_metrics_only(plugin: Plugin, other_pod: Namespace) -> None:
    """Names of pods and command lines of processes are not answered to them."""
    answers = await other_pod.get(*PUBLIC, *PRIVATE, *FORWARDED)
    expected = dict.fromkeys(PUBLIC, 200) | dict.fromkeys(PRIVATE, 404) | dict.fromkeys(FORWARDED, "refused")
    assert answers == expected


async def test_port_forward_and_exec_reach_page_and_status(plugin: Plugin) -> None:
    """``kubectl port-forward`` dials localhost in the pod's network namespace; the command has the pod's variables."""
    assert await plugin.pod.get(*FORWARDED, f"localhost:{PORT}/status") == dict.fromkeys(
        [*FORWARDED, f"localhost:{PORT}/status"], 200
    )
    code, out = await plugin.status()
    assert (code, out.splitlines()[0].partition(":")[0]) == (0, "node-7")
    assert "registered with the kubelet" in out
