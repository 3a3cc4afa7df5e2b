"""``python -m tests.e2e.cluster.stay``: start a cluster that stays, print how to use it, and stop it.

Three processes: the command that a person runs, a holder that outlives it and cleans up, and the sandbox's first
process. The host reaches the API server through a pair of network devices, which the kernel removes with the sandbox.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import parts, phones, plugin, sandbox
from tests.e2e.cluster.cluster import DEVICES, Cluster
from tests.e2e.cluster.sandbox import NETWORK
from tests.e2e.common import cache, packages
from tests.e2e.common.report import describe, say
from tests.e2e.kubelet.archive import BUSYBOX
from tests.e2e.kubelet.parts import PLUGIN_IMAGE, PROJECT
from tests.e2e.kubelet.processes import run
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from tests.e2e.cluster.parts import Parts

DIRECTORY: Final = cache.root() / "cluster"
_READY: Final = DIRECTORY / "ready"
_LOG: Final = cache.root() / "cluster.log"
_MODULE: Final = "tests.e2e.cluster.stay"
_DEVICE: Final = "aosp-cluster"
_HOST: Final = "203.0.113.1/27"
_SECONDS: Final = 300.0

_USAGE: Final = """\
The cluster runs. To use it:

  export KUBECONFIG={directory}/kubeconfig
  export PATH={directory}/bin:$PATH
  kubectl get nodes

Its nodes have {devices} binder devices each, which are stand-ins. To install the plugin, and to run two phones:

  helm install aosp-device-plugin deploy/chart --namespace kube-system --values {directory}/values.json --wait
  kubectl apply -f {directory}/phones.json
  kubectl get pods --output wide

Images on the nodes: {images}. To stop the cluster: make cluster-stop
"""


def main() -> int:
    """Run a command, and return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("command", choices=("start", "stop", "hold"), help="start or stop")
    parser.add_argument("--machines", type=int, default=1, help="the number of nodes; default: 1")
    options = parser.parse_args()
    try:
        if options.command == "hold":
            return _hold(options.machines)
        if options.command == "start":
            _start(options.machines)
        else:
            _stop()
    except (AssertionError, packages.MissingError, OSError, subprocess.SubprocessError) as error:
        say(describe(error))
        return 1
    return 0


def _holders() -> list[int]:
    """Return the process IDs of the holders that run."""
    found = subprocess.run(("pgrep", "--full", f"-m {_MODULE} hold"), capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def _start(machines: int) -> None:
    """Start a cluster, and print how to use it."""
    assert not _holders(), "a cluster runs already; to stop it: make cluster-stop"
    parts.collect(newest=False)
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir()
    command = [sys.executable, "-m", _MODULE, "hold", "--machines", str(machines)]
    with _LOG.open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=PROJECT, start_new_session=True
        )
    try:
        until(lambda: _READY.exists() or process.poll() is not None, "the cluster starts", seconds=_SECONDS)
    except BaseException:  # such as Ctrl-C, which the holder does not get
        process.terminate()
        process.wait()
        raise
    assert process.poll() is None, f"the cluster did not start: {_LOG.read_text()[-2000:]}"
    say(_READY.read_text())


def _stop() -> None:
    """Stop the cluster if one runs."""
    for holder in _holders():
        os.kill(holder, signal.SIGTERM)
    until(lambda: not _holders(), "the cluster has ended", seconds=_SECONDS)
    say("no cluster is running")


def _hold(machines: int) -> int:
    """Run the sandbox until SIGTERM or its own end, and remove all files and cgroups."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    found = parts.collect(newest=False)  # which the command that a person runs has made
    with sandbox.cgroups() as cgroups:
        process = sandbox.start(DIRECTORY, _inside, machines, found, cgroups)
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            _connect(until(children.read_text, "the sandbox starts").split()[0])
            return process.wait()
        finally:
            sandbox.kill(process)
            shutil.rmtree(DIRECTORY, ignore_errors=True)


def _connect(sandbox_pid: str) -> None:
    """Connect the host with the sandbox's bridge, to which :func:`_inside` adds the other device.

    The host gets a route to the control plane and the nodes alone: some networks use other addresses of 203.0.113.0/24,
    a range for documentation (RFC 5737), for example for a proxy of package registries.
    """
    taken = run("ip", "route", "list", "root", NETWORK)
    assert not taken, f"the host uses {NETWORK}: {taken}"
    run("ip", "link", "add", _DEVICE, "type", "veth", "peer", "name", "host", "netns", sandbox_pid)
    run("ip", "address", "add", _HOST, "dev", _DEVICE)
    run("ip", "link", "set", _DEVICE, "up")


def _inside(machines: int, found: Parts, cgroups: str) -> int:
    """Run the cluster, write what a person needs to use it, and wait for the end."""
    until(lambda: "host" in run("ip", "-brief", "link"), "the device to the host")
    run("ip", "link", "set", "host", "master", sandbox.BRIDGE, "up")
    cluster = Cluster(found, DIRECTORY / "run", cgroups)
    cluster.start(machines)
    shutil.copy(cluster.kubeconfig, DIRECTORY / "kubeconfig")
    (DIRECTORY / "values.json").write_text(json.dumps(plugin.VALUES))
    (DIRECTORY / "phones.json").write_text(json.dumps(phones.deployment("phones", 2)))
    (DIRECTORY / "bin").mkdir()
    for program in (found.kubernetes / "kubectl", found.helm):
        (DIRECTORY / "bin" / program.name).symlink_to(program)
    ready = DIRECTORY / "ready.new"
    ready.write_text(_USAGE.format(directory=DIRECTORY, devices=DEVICES, images=f"{PLUGIN_IMAGE}, {BUSYBOX}"))
    ready.rename(_READY)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
