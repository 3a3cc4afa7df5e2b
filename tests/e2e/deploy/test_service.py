"""The unit under a real systemd in a sandbox, with a stand-in kubelet."""

import json
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.common.waiting import until
from tests.e2e.deploy.parts import SYSTEMD, UNIT
from tests.e2e.deploy.service import DEVICES, KUBELET, PLUGINS, Sandbox, sandbox

pytestmark = pytest.mark.core

AOSP_PLUGIN: Final = (sys.executable, "-m", "aosp_plugin")


@pytest.fixture(scope="module")
def node(systemd: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Return the sandbox."""
    with sandbox(tmp_path_factory.mktemp("sandbox")) as found:
        yield found


@pytest.fixture(scope="module")
def kubelet(node: Sandbox) -> Iterator[None]:
    """Run a kubelet, from when it has the devices."""
    with node.kubelet():
        yield


@pytest.fixture
def service(node: Sandbox, kubelet: None) -> Sandbox:
    """Return the sandbox with the service, which is registered."""
    node.run("systemctl", "start", UNIT)
    node.wait(ActiveState="active", StatusText="registered")
    return node


def test_the_service_is_activating_without_a_kubelet_and_says_what_it_waits_for(node: Sandbox) -> None:
    node.wait(ActiveState="activating")
    until(lambda: node.show("StatusText")["StatusText"].startswith("waiting for kubelet"), "the status text")


def test_the_service_is_active_once_the_kubelet_has_the_devices(node: Sandbox, kubelet: None) -> None:
    node.wait(ActiveState="active", StatusText="registered")


def test_the_process_has_no_capability_and_a_seccomp_filter_as_uid_0(service: Sandbox) -> None:
    """Nor a way to gain a capability."""
    status = service.status()
    assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 5
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["Uid"].split() == ["0"] * 4


def test_the_process_can_write_to_the_directory_of_its_socket_only(service: Sandbox) -> None:
    script = 'for path; do if [ -w "$path" ]; then echo "$path"; fi; done'
    paths = ("/etc", "/usr", str(KUBELET), "/sys/kernel", "/proc/sys/kernel", "/var/cache/aosp-plugin", str(PLUGINS))
    output = service.run("nsenter", f"--target={service.pid()}", "--mount", "sh", "-c", script, "sh", *paths)
    assert output.split() == [str(PLUGINS)]


def test_later_mounts_of_the_host_come_and_go_in_the_mounts_of_the_service(service: Sandbox) -> None:
    directory = "/run/aosp-binderfs"
    service.run("mkdir", "-p", directory)
    list_directory = ("nsenter", f"--target={service.pid()}", "--mount", "ls", directory)
    for _ in range(2):
        service.run("mount", "-t", "tmpfs", "tmpfs", directory)
        service.run("touch", f"{directory}/late")
        assert service.run(*list_directory) == "late\n"
        service.run("umount", directory)
        assert service.run(*list_directory) == ""


def test_a_reload_keeps_the_process_and_an_invalid_configuration_changes_nothing(service: Sandbox) -> None:
    before = service.pid()
    for keys, error in (("log_level: debug\n", ""), ("log_levl: debug\n", "log_levl")):
        service.configure(keys)
        service.run("systemctl", "reload", UNIT)
        until(lambda: _reload_ended(service, error), f"a reload with error {error!r}")  # noqa: B023 - now
        service.wait(ActiveState="active", SubState="running")
    service.configure()
    assert service.run(*AOSP_PLUGIN, "reload") == "configuration reloaded\n"
    service.wait(ActiveState="active", StatusText="registered")
    assert service.pid() == before


def _reload_ended(service: Sandbox, error: str) -> bool:
    """Return whether the last reload ended so; without an error if that is empty."""
    last: dict[str, str] | None = json.loads(service.run(*AOSP_PLUGIN, "status", "--json"))["last_reload"]
    return last is not None and (error in last["error"] if error else last["error"] == "")


@pytest.mark.parametrize("signal", ["STOP", "KILL"])
def test_a_process_that_hangs_or_dies_is_restarted_and_registers_again(signal: str, service: Sandbox) -> None:
    """The watchdog ends one that hangs. The next one removes the socket of the killed one."""
    restarts = int(service.show("NRestarts")["NRestarts"])
    service.run("kill", f"-{signal}", service.pid())
    service.wait(NRestarts=str(restarts + 1), ActiveState="active", StatusText="registered")
    until(lambda: len(list(service.path(PLUGINS).glob("aosp-*.sock"))) == 1, "one socket")


def test_systemctl_stop_ends_the_process_with_0_and_its_socket_is_removed(service: Sandbox) -> None:
    service.run("systemctl", "stop", UNIT)
    service.wait(ActiveState="inactive", Result="success", ExecMainStatus="0")
    assert not list(service.path(PLUGINS).glob("aosp-*.sock"))


def test_the_drop_in_of_recreation_needs_no_capability_and_cdi_specs_are_readable(service: Sandbox) -> None:
    """Root sees who has a device open."""
    service.run("mkdir", "-p", "/run/aosp-binderfs/devices")
    service.drop_in("recreate.conf", (SYSTEMD / "recreate.conf").read_text())
    service.configure("device_list: [envvar, cdi-cri]\n")
    service.run("systemctl", "daemon-reload")
    service.run("systemctl", "restart", UNIT)
    status = service.status()
    assert [int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")] == [0] * 3
    holder = (*service.enter, "setpriv", "--reuid=65534", "--clear-groups", "sleep", "120")
    with service.path(DEVICES / "aosp_binder1").open() as opened, subprocess.Popen(holder, stdin=opened):
        found = until(lambda: _holder(service), "the holder is listed")
        assert service.run("readlink", f"/proc/{found}/fd/0").strip() == str(DEVICES / "aosp_binder1")
        service.run("kill", found)
    spec = service.path("/run/cdi/aosp.io_binder.json")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (spec.parent, spec)] == [0o755, 0o644]
    assert len(json.loads(spec.read_text())["devices"]) == 3


def _holder(service: Sandbox) -> str:
    """Return the PID of the process that has a device open according to the plugin, or an empty text."""
    command = (*service.enter, *AOSP_PLUGIN, "holders", "--device-dir", str(DEVICES), "--verify", "char")
    # It does not succeed, because the sandbox hides the processes of the machine.
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    found = re.search(r"^aosp_binder1 .* 65534 +1 +(\d+) +sleep 120$", listed, re.MULTILINE)
    return found[1] if found else ""
