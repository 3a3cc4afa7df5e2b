"""``python -m tests.e2e.cluster.stay``: start a cluster that stays, print how to use it, and stop it.

Three processes: the command that a person runs, a holder that outlives it and cleans up, and the sandbox's first
process. The host reaches the API server through a pair of network devices, which the kernel removes with the sandbox.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import parts, phones, plugin, sandbox
from tests.e2e.cluster.cluster import DEVICES, Cluster
from tests.e2e.cluster.parts import Parts
from tests.e2e.cluster.sandbox import NETWORK
from tests.e2e.common import cache, packages
from tests.e2e.common.report import describe, say
from tests.e2e.kubelet.archive import BUSYBOX
from tests.e2e.kubelet.parts import PLUGIN_IMAGE, PROJECT
from tests.e2e.kubelet.processes import run
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRECTORY: Final = cache.root() / "cluster"
_HOLDER: Final = DIRECTORY / "holder.pid"
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
    parser.add_argument("command", choices=("start", "stop", "hold", "inside"), help="start or stop")
    parser.add_argument("--machines", type=int, default=1, help="the number of nodes; default: 1")
    parser.add_argument("--parts", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--cgroups", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        match options.command:
            case "start":
                _start(options.machines)
            case "stop":
                _stop()
            case "hold":
                return _hold(options.machines, options.parts)
            case _:
                _inside(options.machines, Parts.from_arguments(options.parts), options.cgroups)
    except (AssertionError, packages.MissingError, OSError, subprocess.SubprocessError) as error:
        say(describe(error))
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _start(machines: int) -> None:
    """Start a cluster unless one runs or starts, and print how to use it."""
    if holder := _holder():
        say("# a cluster runs already")
        until(lambda: _READY.exists() or not _runs(holder), "the cluster starts", seconds=_SECONDS)
    else:
        found = parts.collect(newest=False)
        started = time.monotonic()
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        DIRECTORY.mkdir()
        command = [sys.executable, "-m", _MODULE, "hold", "--machines", str(machines), "--parts", *found.arguments()]
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
        say(f"# ready for pods after {time.monotonic() - started:.0f} s")
    say(_READY.read_text())


def _stop() -> None:
    """Stop the cluster if one runs."""
    holder = _holder()
    if holder:
        os.kill(holder, signal.SIGTERM)
        until(lambda: not _runs(holder), "the cluster has ended", seconds=_SECONDS)
    say("no cluster is running")


def _holder() -> int:
    """Return the process ID of the running holder, or 0."""
    try:
        pid = int(_HOLDER.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return 0
    return pid if _MODULE.encode() in command else 0


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _hold(machines: int, found: list[str]) -> int:
    """Run the sandbox until SIGTERM or its own end, and remove all files and cgroups."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _files(), sandbox.cgroups() as cgroups:
        arguments = ["inside", "--machines", str(machines), "--cgroups", cgroups, "--parts", *found]
        process = subprocess.Popen(sandbox.command(_MODULE, arguments), cwd=PROJECT)
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            inner = until(children.read_text, "the sandbox starts").split()[0]
            _connect(inner)
            return process.wait()
        finally:
            sandbox.kill(process)


@contextlib.contextmanager
def _files() -> Iterator[None]:
    """Record this process, and remove the cluster's directory at the end."""
    _HOLDER.write_text(str(os.getpid()))
    try:
        yield
    finally:
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


def _inside(machines: int, found: Parts, cgroups: str) -> None:
    """Run the cluster as the sandbox's first process, until it is killed."""
    sandbox.set_up()
    until(lambda: "host" in run("ip", "-brief", "link"), "the device to the host")
    run("ip", "link", "set", "host", "master", sandbox.BRIDGE, "up")
    cluster = Cluster(found, DIRECTORY / "run", cgroups)
    cluster.start(machines)
    _prepare_use(cluster)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        signal.pause()


def _prepare_use(cluster: Cluster) -> None:
    """Write what a person needs, and report that the cluster is ready."""
    shutil.copy(cluster.kubeconfig, DIRECTORY / "kubeconfig")
    (DIRECTORY / "values.json").write_text(json.dumps(plugin.VALUES))
    (DIRECTORY / "phones.json").write_text(json.dumps(phones.deployment("phones", 2)))
    programs = DIRECTORY / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(cluster.parts.kubernetes / "kubectl")
    (programs / "helm").symlink_to(cluster.parts.helm)
    ready = DIRECTORY / "ready.new"
    ready.write_text(_USAGE.format(directory=DIRECTORY, devices=DEVICES, images=f"{PLUGIN_IMAGE}, {BUSYBOX}"))
    ready.rename(_READY)


if __name__ == "__main__":
    sys.exit(main())
