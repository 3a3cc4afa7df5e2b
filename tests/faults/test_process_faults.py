"""``aosp-plugin serve`` under faults of the process and of the host: what is survived, and what ends the process."""

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kubelet_standin import Container, Kubelet, Pod
from tests.served_node import ServedNode
from tests.support import PATIENCE, RESOURCE, answered, free_port, http_get, listed, without_descriptors
from tests.systemd import Systemd

# -- descriptors


async def watchdog(systemd: Systemd) -> None:
    """Wait for some notifications for the watchdog."""
    count = 20
    async with asyncio.timeout(PATIENCE):
        while count:
            count -= "WATCHDOG=1" in await systemd.receive()


async def test_everything_works_after_descriptors_ran_out(kubelet: Kubelet, tmp_path: Path, systemd: Systemd) -> None:
    """Clients wait meanwhile. systemd's watchdog is fed all the time, or systemd would kill the process."""
    node = ServedNode(tmp_path, kubelet, port=free_port())
    node.configure()
    node.devices.add(0, 1)
    async with node.process(environment=systemd.environment | {"WATCHDOG_USEC": "100000"}) as plugin:
        await listed(kubelet, 2)
        await answered(node.port, "/readyz", "ok: ")
        with contextlib.ExitStack() as clients:
            with without_descriptors(plugin.process.pid):
                for _ in range(8):
                    client = clients.enter_context(socket.create_connection(("127.0.0.1", node.port)))
                    client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
                systemd.pending()
                await watchdog(systemd)
                node.devices.add(2)
            await listed(kubelet, 3)
        await watchdog(systemd)
        assert (await http_get(node.port, "/readyz"))[0] == 200
        assert (await http_get(node.port, "/metrics"))[0] == 200
        await kubelet.admit(Pod("phone", [Container("android", {RESOURCE: 1})]))
        assert len(kubelet.registrations) == 1


# -- threads


@pytest.mark.parametrize(
    ("command", "limit"),
    [*(("serve", limit) for limit in (1, 2, 4, 9, 12, 20)), *(("provisioner", limit) for limit in (1, 2, 4))],
)
def test_process_that_may_start_too_few_threads_says_which_limit_to_raise(command: str, limit: int) -> None:
    """Otherwise gRPC would crash, or wait for ever. The limit is that of a user who runs nothing else."""
    user = ["setpriv", f"--reuid={200_000 + os.getpid()}", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    words = ["prlimit", f"--nproc={limit}", *user, sys.executable, "-m", "aosp_plugin", command]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603 - ours
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert re.match(r"aosp-plugin: cannot start \d+ threads: raise the limit that is reached: pids.max of ", line)
