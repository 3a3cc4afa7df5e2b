"""Items: the unit under a real systemd, with a stand-in kubelet. They run in the sandbox of ``service``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kubelet_standin import Kubelet
from tests.e2e.common.report import describe
from tests.e2e.deploy.items_unit import SYSTEMD, UNIT
from tests.e2e.deploy.parts import run
from tests.e2e.deploy.service import DEVICES, KUBELET, configure, drop_in
from tests.e2e.kubelet.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

RESOURCE: Final = "aosp.io/binder"
PLUGINS: Final = KUBELET / "device-plugins"


class Node:
    """The sandbox: the systemd service and a kubelet that an item starts."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._kubelet: Kubelet | None = None
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def show(self, *names: str) -> dict[str, str]:
        """Return properties of the service."""
        lines = run("systemctl", "show", UNIT, f"--property={','.join(names)}").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def wait(self, **expected: str) -> None:
        """Wait until the service has these properties."""

        def reached() -> bool:
            properties = self.show(*expected)
            assert properties == expected, f"{properties}"
            return True

        until(reached, f"{expected}")

    def pid(self) -> int:
        """Return the PID of the service's main process."""
        return int(self.show("MainPID")["MainPID"])

    def status(self) -> dict[str, str]:
        """Return /proc/PID/status of the main process."""
        lines = Path(f"/proc/{self.pid()}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def start_kubelet(self) -> None:
        """Start a kubelet, and wait until it can allocate the three devices."""

        async def start() -> None:
            self._kubelet = await Kubelet(str(PLUGINS)).__aenter__()
            await self._kubelet.wait_for(lambda kubelet: kubelet.resource(RESOURCE).allocatable == 3)

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(30)

    def get(self, path: str) -> str:
        """Return the plugin's response."""
        with urllib.request.urlopen(f"http://127.0.0.1:9478/{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text


def waits_for_kubelet(node: Node) -> None:
    """systemd: without a kubelet the service is activating, and its status text says that it waits for the kubelet."""
    node.wait(ActiveState="activating")
    until(lambda: node.show("StatusText")["StatusText"].startswith("waiting for kubelet"), "the status text")


def starts(node: Node) -> None:
    """systemd: the service is active once the kubelet has the devices."""
    node.start_kubelet()
    node.wait(ActiveState="active", StatusText="registered")


def no_privileges(node: Node) -> None:
    """systemd: the process has no capability and no way to gain one, and a seccomp filter; it runs as uid 0."""
    status = node.status()
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, f"{name}: {status[name]}"
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"), f"{status['NoNewPrivs']} {status['Seccomp']}"
    assert status["Uid"].split() == ["0"] * 4, status["Uid"]


def read_only(node: Node) -> None:
    """systemd: the process can write to its socket's directory, but not to its program, /etc or the kubelet's files."""
    script = 'for path; do if [ -w "$path" ]; then echo "$path"; fi; done'
    paths = ("/etc", "/usr", str(KUBELET), "/sys/kernel", "/proc/sys/kernel", "/var/cache/aosp-plugin", str(PLUGINS))
    output = run("nsenter", f"--target={node.pid()}", "--mount", "sh", "-c", script, "sh", *paths)
    assert output.split() == [str(PLUGINS)], f"writable: {output.split()}"


def later_mounts(node: Node) -> None:
    """systemd: a file system that the host mounts and unmounts later does so in the service's mount namespace too."""
    directory = Path("/run/aosp-binderfs")
    directory.mkdir()
    list_directory = ("nsenter", f"--target={node.pid()}", "--mount", "ls", str(directory))
    for _ in range(2):
        run("mount", "-t", "tmpfs", "tmpfs", str(directory))
        (directory / "late").touch()
        assert run(*list_directory) == "late\n"
        run("umount", str(directory))
        assert run(*list_directory) == ""


def reloads(node: Node) -> None:
    """systemd: a reload, by systemctl or aosp-plugin, keeps the process; an invalid configuration changes nothing."""
    before = node.pid()
    for keys, outcome in (("log_level: debug\n", '"error":""'), ("log_levl: debug\n", "log_levl")):
        configure(keys)
        run("systemctl", "reload", UNIT)
        until(lambda: outcome in node.get("status").partition('"last_reload":{')[2], "the outcome")  # noqa: B023 - now
        node.wait(ActiveState="active", SubState="running")
    assert node.pid() == before
    configure()
    assert run(sys.executable, "-m", "aosp_plugin", "reload") == "configuration reloaded\n"
    assert node.pid() == before
    node.wait(ActiveState="active", StatusText="registered", NRestarts="0")


def watchdog(node: Node) -> None:
    """systemd: the watchdog restarts a process that hangs, which registers again."""
    os.kill(node.pid(), signal.SIGSTOP)
    node.wait(NRestarts="1", ActiveState="active", StatusText="registered")


def restarts(node: Node) -> None:
    """systemd: a killed process is restarted, and removes the stale socket."""
    os.kill(node.pid(), signal.SIGKILL)
    node.wait(NRestarts="2", ActiveState="active", StatusText="registered")
    until(lambda: len(list(PLUGINS.glob("aosp-*.sock"))) == 1, "one socket")


def stops(node: Node) -> None:
    """systemd: `systemctl stop` ends the process with 0, and its socket is removed."""
    run("systemctl", "stop", UNIT)
    node.wait(ActiveState="inactive", Result="success", ExecMainStatus="0")
    assert not list(PLUGINS.glob("aosp-*.sock"))


def drop_in_of_recreation(node: Node) -> None:
    """systemd, recreate.conf: no capability; root sees who has a device open; CDI specs readable."""
    Path("/run/aosp-binderfs/devices").mkdir(parents=True, exist_ok=True)
    drop_in("recreate.conf", (SYSTEMD / "recreate.conf").read_text())
    configure("device_list: [envvar, cdi-cri]\n")
    run("systemctl", "daemon-reload")
    holder = ("setpriv", "--reuid=65534", "--clear-groups", "sleep", "120")
    run("systemctl", "start", UNIT)
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(node.status()[name], 16) == 0, f"{name}: {node.status()[name]}"
    with (DEVICES / "aosp_binder1").open() as opened, subprocess.Popen(holder, stdin=opened) as process:
        try:
            command = (sys.executable, "-m", "aosp_plugin", "holders", "--device-dir", str(DEVICES), "--verify", "char")
            # It does not succeed, because the sandbox hides the processes of the machine.
            found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
            assert re.search(rf"^aosp_binder1 .* 65534 +1 +{process.pid} +sleep 120$", found, re.MULTILINE), found
        finally:
            process.kill()
    spec = Path("/run/cdi/aosp.io_binder.json")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (spec.parent, spec)] == [0o755, 0o644]
    assert len(json.loads(spec.read_text())["devices"]) == 3


ITEMS: Final[tuple[Callable[[Node], None], ...]] = (
    waits_for_kubelet,
    starts,
    no_privileges,
    read_only,
    later_mounts,
    reloads,
    watchdog,
    restarts,
    stops,
    drop_in_of_recreation,
)


def main() -> None:
    """Check the items, and write a line for each: title, seconds, error. The last line is empty."""
    results = Path(sys.argv[1])
    until(lambda: "aosp" in run("systemctl", "list-units", "--all", UNIT), "systemd answers")
    node = Node()
    with results.open("w") as file:

        def write(*line: Any) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        for item in ITEMS:
            started, detail = time.monotonic(), ""
            try:
                item(node)
            except Exception as error:  # noqa: BLE001 - the other items run after any error
                detail = describe(error)
            write(" ".join((item.__doc__ or "").split()).removesuffix("."), time.monotonic() - started, detail)
        write("", 0, "")
    run("systemctl", "--force", "exit")


if __name__ == "__main__":
    main()
