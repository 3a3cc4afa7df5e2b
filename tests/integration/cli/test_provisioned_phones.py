"""Phones that another process mounts for a plugin without the right: `aosp-plugin provision` once, or the provisioner.

A tmpfs, really mounted, stands in for binderfs.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.binder.devices.sets import phone_id
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import phone_mount, provisioner_socket
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from aosp_plugin.cli import provision
from aosp_plugin.cli.main import main
from aosp_plugin.config.values import ProvisionedBy
from aosp_plugin.framework import DevicePlugin
from aosp_plugin.framework.dra.claim_records import BOOT_ID_FILE, ClaimRecord, DeviceRecord, RecordStore, RequestRecord
from aosp_plugin.framework.errors import BackendError
from kubelet_standin import Container, Kubelet, Pod, PodResources
from tests.backends import Served, file_systems, phones_backend
from tests.full_pipe import FullPipe
from tests.support import PATIENCE, Clock, listed, run
from tests.tmpfs_binderfs import Mounts

PHONE = "aosp.io/phone"
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(directory: Mounts, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Yield a function that runs `aosp-plugin provision`, and returns its exit code and what it logged."""
    before = logging.root.handlers[:], logging.root.level

    def run_command(*flags: str, count: int = 3, **keys: Any) -> tuple[int, str]:
        phones = {"count": count, "directory": str(directory.path)}
        file = tmp_path / "config.yaml"
        socket_path = str(tmp_path / "kubelet.sock")
        process = {"log_format": "json", "pod_resources_socket": socket_path}
        file.write_text(json.dumps({"version": "v1", **process, "phones": phones, **keys}))
        code = main(["provision", f"--config={file}", *flags])
        return code, capfd.readouterr().err

    yield run_command
    logging.root.handlers[:], logging.root.level = before


def served(directory: Path, by: ProvisionedBy) -> Served:
    """Return a backend whose three phones another process mounts, after its first scans and host update."""
    backend = phones_backend(directory, 3, clock=Clock(), provisioned_by=by)
    rescan(backend)
    return backend


def rescan(backend: Served) -> None:
    backend.scan_and_update()
    backend.scan()


def reasons(backend: Served) -> dict[str, str]:
    """Return why devices are unhealthy, in words, by ID; empty text for those that are healthy."""
    return {device.id: device.detail for device in backend.found.devices}


def test_the_command_mounts_each_phone_once_and_says_which_one_it_cannot_mount(
    directory: Mounts, command: Command
) -> None:
    """One phone must not keep the plugin of the node from starting."""
    (directory.path / "phone1").mkdir(parents=True)
    directory.mount_other("phone1")
    code, log = command()
    warning, summary = map(json.loads, log.splitlines())
    assert code == 0
    assert (warning["level"], warning["device"]) == ("warning", "phone1")
    assert "another file system is mounted in place of the phone's binderfs: unmount it" in warning["error"]
    assert (summary["message"], summary["added"]) == ("provisioned", 2)
    assert reasons(served(directory.path, ProvisionedBy.COMMAND))["phone1"].startswith("foreign-mount")
    directory.unmount("phone1")
    before = file_systems(directory.path)
    for added in (1, 0):
        code, log = command()
        assert (code, json.loads(log)["ordered"], json.loads(log)["added"]) == (0, 3, added)
    assert directory.mounted() == {"phone0": 1, "phone1": 1, "phone2": 1}
    assert file_systems(directory.path).items() >= before.items()


@pytest.mark.parametrize("keys", [{"phones": None}, {"api": "dra"}], ids=["found devices", "claims"])
def test_the_command_says_that_there_is_nothing_to_provision(
    directory: Mounts, command: Command, keys: dict[str, Any]
) -> None:
    code, log = command(**keys)
    assert (code, json.loads(log)["message"]) == (0, "nothing to provision")
    assert not directory.path.exists()


def test_the_command_refuses_a_directory_that_leads_below_dev(directory: Mounts, command: Command) -> None:
    directory.path.symlink_to("/dev/shm")
    code, log = command()
    assert code == 2
    assert "every device below /dev" in log


def test_the_plugin_serves_the_phones_of_the_command_without_a_right(
    directory: Mounts, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phones that are not mounted are listed with the remedy."""
    remedy = "not-provisioned: no binderfs is mounted for it: restart the plugin's pod, or run aosp-plugin provision"
    with monkeypatch.context() as patch:
        directory.refuse_all(patch)
        backend = served(directory.path, ProvisionedBy.COMMAND)
        assert list(reasons(backend)) == ["phone0", "phone1", "phone2"]
        assert all(reason.startswith(remedy) for reason in reasons(backend).values())
    command()
    directory.refuse_all(monkeypatch)
    backend = served(directory.path, ProvisionedBy.COMMAND)
    assert reasons(backend) == {"phone0": "", "phone1": "", "phone2": ""}
    assert not backend.backend.pre_start_required
    backend.backend.check_host(backend.found)
    paths = [node.host_path for node in backend.allocate(["phone1"]).devices]
    assert f"{directory.path}/phone1/hwbinder" in paths


def test_the_command_fails_if_something_is_missing_that_it_cannot_mount(
    directory: Mounts, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(binderfs, "BINDERFS", "no-such-file-system")
        code, log = command()
    assert (code, log.startswith("aosp-plugin: aosp.io/phone: cannot mount a binderfs on")) == (1, True)
    assert "modprobe binder_linux, or boot a kernel with CONFIG_ANDROID_BINDERFS" in log
    command()
    fill = phone_mount.fill
    directory.refuse_all(monkeypatch)
    monkeypatch.setattr(phone_mount, "fill", fill)
    assert command()[0] == 0
    code, log = command(count=4)
    assert (code, "cannot mount" in log) == (1, True)


# -- removal by the command


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command run in the host's mount namespace, in which the kubelet need not say which devices are in use."""
    monkeypatch.setattr(provision, "on_host", lambda: True)


def kept(log: str) -> dict[str, str]:
    """Return why phones were kept, from the log."""
    events = [json.loads(line) for line in log.splitlines()]
    return {event["device"]: event["reason"] for event in events if event["message"] == "not removed"}


def test_removal_keeps_what_a_process_has_mounted_or_open(
    directory: Mounts, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a kubelet, nothing is removed in a mount namespace of its own, as this test and a container have."""
    command()
    code, log = command("--remove")
    assert (code, len(directory.mounted())) == (1, 3)
    assert "cannot find out from the kubelet which devices are in use: " in log
    monkeypatch.setattr(provision, "on_host", lambda: True)
    (directory.path.parent / "container").touch()
    script = f"mount --bind {directory.path}/phone1/binder {directory.path.parent}/container; echo; read line"
    words = ("unshare", "--mount", "--propagation=private", "sh", "-ec", script)
    with (
        open(directory.path / "phone2/binder", "rb"),
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as container,  # noqa: S603 - fixed
    ):
        assert container.stdout is not None
        assert container.stdout.readline() == b"\n"
        code, log = command("--remove")
        assert (code, {*directory.mounted()}) == (3, {"phone1", "phone2"})
        assert kept(log)["phone1"] == f"process {container.pid} has it mounted"
        assert kept(log)["phone2"].endswith("phone2: a process has one of its devices open: end it and retry")
        container.communicate(b"\n")
    assert command("--remove")[0] == 0
    assert not [*directory.path.iterdir()]
    assert command("--remove")[0] == 0, "there is nothing to remove"


@pytest.mark.usefixtures("on_host")
def test_removal_of_surplus_phones_lets_an_init_container_succeed(directory: Mounts, command: Command) -> None:
    command()
    directory.mount_other("phone2")
    code, log = command("--remove", "--surplus", count=1)
    assert (code, {*kept(log)}) == (0, {"phone2"})
    assert directory.mounted() == {"phone0": 1, "phone2": 2}


async def test_removal_keeps_phones_of_pods_and_those_that_a_plugin_offers(
    directory: Mounts, kubelet_dir: str, tmp_path: Path, command: Command
) -> None:
    backend = phones_backend(directory.path, provisioned_by=ProvisionedBy.PLUGIN)
    async with Kubelet(kubelet_dir) as kubelet, PodResources(kubelet, tmp_path / "kubelet.sock"):
        async with run(DevicePlugin(backend.backend, kubelet_dir=kubelet_dir)):
            await listed(kubelet, 3, PHONE)
            await kubelet.admit(Pod("game-node-1", [Container("android", {PHONE: 1})]))
            code, log = await asyncio.to_thread(command, "--remove")
            assert (code, directory.mounted()) == (3, {"phone0": 1, "phone1": 1, "phone2": 1})
            offered = dict.fromkeys(("phone1", "phone2"), "a plugin offers it to pods")
            assert kept(log) == {"phone0": "pod default/game-node-1", **offered}
        await kubelet.wait_for(lambda k: k.resource(PHONE).allocatable == 0)
        code, log = await asyncio.to_thread(command, "--remove")
        assert (code, kept(log), directory.mounted()) == (3, {"phone0": "pod default/game-node-1"}, {"phone0": 1})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NODE_NAME", "node-1")
            assert "it lists no pod but static ones" in (await asyncio.to_thread(command, "--remove"))[1]


def test_removal_keeps_phones_that_are_mounted_while_it_runs(
    directory: Mounts, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is mounted at the look at the kubelet for a claim, the other one again after its unmount."""
    command(count=1)
    provisioner, unmount = PhoneProvisioner(str(directory.path), Host()), binderfs.unmount

    def unmount_and_provision(path: str, *, lazy: bool = False) -> None:
        unmount(path, lazy=lazy)
        if not lazy:
            provisioner.provision(["phone0"])

    monkeypatch.setattr(provision, "on_host", lambda: provisioner.mount("phone1"))
    monkeypatch.setattr(binderfs, "unmount", unmount_and_provision)
    code, log = command("--remove")
    assert (code, {*kept(log)}, directory.mounted()) == (3, {"phone0", "phone1"}, {"phone0": 1, "phone1": 1})


@pytest.mark.usefixtures("on_host")
def test_removal_keeps_the_phones_of_prepared_claims_of_any_driver(
    directory: Mounts, command: Command, tmp_path: Path
) -> None:
    command()
    device = DeviceRecord("phone1", "node/00000", "phone1")
    record = ClaimRecord("old.aosp.io", "uid", "default", "game", (RequestRecord("phone", (device,)),))
    store = RecordStore("old.aosp.io", str(tmp_path / "plugins" / "old.aosp.io"), boot_id_file=BOOT_ID_FILE)
    store.refresh()
    store.write(record, [str(directory.path / "phone1")], str(tmp_path))
    store.close()
    kubelet_dir = str(tmp_path / "device-plugins")
    code, log = command("--remove", api="dra", kubelet_dir=kubelet_dir)
    assert (code, kept(log), directory.mounted()) == (3, {"phone1": "claim default/game"}, {"phone1": 1})
    Path(store.path("claim_default_game_uid.json")).write_text("")
    code, log = command("--remove", api="dra", kubelet_dir=kubelet_dir)
    assert (code, directory.mounted()) == (1, {"phone1": 1})
    assert "claim_default_game_uid.json is damaged: its claim may have any device" in log


# -- the provisioner

PROGRAM = (sys.executable, "-m", "tests.tmpfs_phones")


class Provisioner:
    """`aosp-plugin provisioner` as a process."""

    def __init__(self, directory: Path, work: Path) -> None:
        self.directory = directory
        self.socket = work / "run" / "provisioner.sock"
        self.environment = {**os.environ, "PROVISIONER_SOCKET": str(self.socket)}
        self._file = work / "provisioner.yaml"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, count: int = 3, *, stderr: int | None = None, **keys: Any) -> None:
        """Start the process, and wait until it accepts connections. ``stderr`` is a file descriptor."""
        phones = {"count": count, "directory": str(self.directory)}
        document = {"version": "v1", "phones": phones, **keys}
        self._file.write_text(json.dumps(document))
        self._process = subprocess.Popen(  # noqa: S603 - a fixed command
            (*PROGRAM, "provisioner", f"--config={self._file}"), env=self.environment, stderr=stderr
        )
        with socket.socket(socket.AF_UNIX) as connection:
            while connection.connect_ex(str(self.socket)):
                assert self._process.poll() is None
                time.sleep(0.01)

    def stop(self, number: signal.Signals | None = signal.SIGTERM) -> int:
        """End the process, or wait for its end; return its exit code."""
        assert self._process is not None
        if number is not None:
            self._process.send_signal(number)
        code, self._process = self._process.wait(PATIENCE), None
        return code

    def close(self) -> None:
        """End the process if it runs."""
        if self._process is not None:
            self.stop(signal.SIGKILL)

    def ask(self, request: object) -> Any:
        """Send a request as a plugin would that an attacker controls; return the answer, None if there is none."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(self.socket))
            connection.sendall(request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n")
            connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile().read()
        return json.loads(answer) if answer else None

    def request(self, operation: str, *phones: str, directory: str | None = None) -> Any:
        """Ask for phones."""
        where = directory or str(self.directory)
        return self.ask({"directory": where, "operation": operation, "phones": [*phones], "limit": 10})


NO_PHONE = "x" * 200


@pytest.fixture
def provisioner(directory: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provisioner]:
    """Yield the privileged process, which is not started. This process has no right to mount anything."""
    directory.refuse_all(monkeypatch)
    with contextlib.closing(Provisioner(directory.path, tmp_path)) as process:
        monkeypatch.setattr(provisioner_socket, "PROVISIONER_SOCKET", str(process.socket))
        yield process


@pytest.fixture
def backend(provisioner: Provisioner) -> Served:
    """Return a backend with three phones, which the provisioner, which is started, has mounted."""
    provisioner.start()
    return served(provisioner.directory, ProvisionedBy.PROVISIONER)


def test_no_container_starts_without_a_fresh_binderfs(
    directory: Mounts, provisioner: Provisioner, backend: Served
) -> None:
    """The tenant before keeps the old one. The next process takes over the socket of the one that was killed."""
    before = file_systems(directory.path)
    left_behind = os.open(directory.path / "phone1" / "binder", os.O_PATH)
    try:
        backend.pre_start(["phone1"])
        assert os.fstat(left_behind).st_ctime_ns == before["phone1"]
    finally:
        os.close(left_behind)
    after = file_systems(directory.path)
    assert after.pop("phone1") != before.pop("phone1")
    assert after == before, "another phone was replaced"
    rescan(backend)
    assert reasons(backend) == {"phone0": "", "phone1": "", "phone2": ""}
    assert provisioner.stop(signal.SIGKILL) == -signal.SIGKILL
    with pytest.raises(BackendError, match=r"could not be recreated: the provisioner at .* does not answer: "):
        backend.pre_start(["phone1"])
    backend.scan()
    assert reasons(backend)["phone1"].startswith("not-recreated")
    before = file_systems(directory.path)
    provisioner.start()
    rescan(backend)
    assert reasons(backend)["phone1"] == ""
    assert file_systems(directory.path)["phone1"] != before["phone1"]


def test_phones_are_mounted_as_soon_as_the_provisioner_can(directory: Mounts, provisioner: Provisioner) -> None:
    """It may start after the plugin, and not be able to mount a phone yet."""
    obstacle = directory.path / "phone1" / "file"
    obstacle.parent.mkdir(parents=True)
    obstacle.touch()
    backend = phones_backend(provisioner.directory, provisioned_by=ProvisionedBy.PROVISIONER)
    backend.scan()
    with pytest.raises(BackendError, match=r"the provisioner at \S+ does not answer: No such file or directory: its"):
        backend.update_host()
    provisioner.start()
    with pytest.raises(BackendError, match="phone1 is not empty"):
        backend.update_host()
    obstacle.unlink()
    rescan(backend)
    assert reasons(backend) == {"phone0": "", "phone1": "", "phone2": ""}


@pytest.mark.usefixtures("backend")
def test_the_provisioner_refuses_what_is_not_its_own(
    directory: Mounts, provisioner: Provisioner, tmp_path: Path
) -> None:
    """It removes no phone of its configuration. A request with a name that is no phone is refused as a whole.

    One that is beyond a lowered count is replaced for its pod, whose container starts again, and may be removed.
    """
    (tmp_path / "other").mkdir()
    before = file_systems(directory.path)
    for operation, phones, error in (
        ("provision", ["phone3"], ""),
        ("replace", ["phone3"], ""),
        ("remove", ["phone1"], ""),
        ("remove", ["../other"], "'../other' is not a phone"),
        ("remove", ["other"], "'other' is not a phone"),
        ("replace", ["../phone1"], "'../phone1' is not a phone"),
        ("replace", ["phone1/binder"], "'phone1/binder' is not a phone"),
        ("replace", ["phone0", *[NO_PHONE] * 5000], f"{NO_PHONE!r} is not a phone"),
        ("provision", [""], "'' is not a phone"),
        ("unmount", ["phone1"], "unknown operation 'unmount'"),
    ):
        answer = provisioner.request(operation, *phones)
        assert (answer["error"], answer["changed"]) == (error, [])
        assert error or answer["phone_errors"]
        assert file_systems(directory.path) == before
    assert "no phones in /etc" in provisioner.request("replace", "phone1", directory="/etc")["error"]
    provisioner.stop()
    provisioner.start(count=1)
    for operation, changed in (("provision", []), ("replace", ["phone2"])):
        assert provisioner.request(operation, "phone2")["changed"] == changed
    assert file_systems(directory.path)["phone2"] != before["phone2"]
    assert provisioner.request("remove", "phone2")["changed"] == ["phone2"]
    assert {path.name for path in directory.path.iterdir()} == {"phone0", "phone1"}
    assert (tmp_path / "other").is_dir()


def test_the_provisioner_survives_requests_that_make_no_sense(
    provisioner: Provisioner, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each is a short line of its log. It answers also while nobody reads that, and a signal ends it orderly."""
    strange = (b"\xff" * 1_000_000, b"[" * 100_000, b"1" * 3_000_000)
    with FullPipe() as pipe:
        for stderr in (None, pipe.writer):
            provisioner.start(stderr=stderr)
            for request in (b"", b"\n", b"\xff\xfe\n", b"[]\n", b'{"directory": {}}\n', *strange):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it reads no endless request
                    assert provisioner.ask(request) is None
            assert set(reasons(served(provisioner.directory, ProvisionedBy.PROVISIONER)).values()) == {""}
            if stderr is not None:
                pipe.read_until("request of the plugin failed")
            assert provisioner.stop() == 0
    assert max(map(len, capfd.readouterr().err.splitlines())) < 500


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.comparisons += 1
        return super().__eq__(other)


def test_the_names_of_a_request_are_not_compared_with_each_other(directory: Mounts) -> None:
    """A request has room for 70,000 of them."""
    names = [Name(phone_id(number)) for number in range(200)] * 2
    answer = provisioner_socket.RequestedPhones(str(directory.path), Host(), 100).answer("check", names, 0)
    assert len(answer["phone_errors"]) == 100
    assert Name.comparisons < 10 * len(names)


@pytest.mark.parametrize(
    ("place", "owner", "mode"),
    [*((place, 65534, 0o755) for place in ("work", "work/phones", "link")), ("work", 0, 0o775), ("work", 0, 0o757)],
)
def test_nothing_is_mounted_where_others_can_change_the_path(
    directory: Mounts, command: Command, place: str, owner: int, mode: int
) -> None:
    """Because of the owner or mode of a directory of the path, that of the phones, or one with a link on the path."""
    work = directory.path.parent / "work"
    (work / "phones").mkdir(parents=True)
    (work / "link").symlink_to("phones")
    (directory.path.parent / "link").mkdir()
    (directory.path.parent / "link/link").symlink_to(work / "phones")
    os.chown(directory.path.parent / place, owner, owner)
    (directory.path.parent / place).chmod(mode)
    leads = "link/link" if place == "link" else "work/link"
    code, log = command(phones={"count": 1, "directory": str(directory.path.parent / leads)})
    assert code == 1
    assert f"others than root can change {directory.path.parent / place}" in log
    assert not [*(work / "phones").iterdir()]


def test_the_provisioner_waits_for_no_request(provisioner: Provisioner) -> None:
    """A plugin that an attacker controls connects, and sends byte for byte."""
    provisioner.start()
    with socket.socket(socket.AF_UNIX) as connection, ThreadPoolExecutor(1) as sender:
        connection.connect(str(provisioner.socket))
        ended = threading.Event()

        def send() -> None:
            while not ended.wait(0.1):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.send(b" ")

        sending = sender.submit(send)
        assert set(reasons(served(provisioner.directory, ProvisionedBy.PROVISIONER)).values()) == {""}
        ended.set()
        sending.result()


def test_a_second_provisioner_ends_and_leaves_the_socket_to_the_first(
    provisioner: Provisioner, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only root can connect. The directory of the socket is created on a host that has none."""
    provisioner.start()
    second = Provisioner(provisioner.directory, tmp_path)
    second.start()
    assert second.stop(None) == 1
    message = f"another process serves as provisioner on {provisioner.socket}: a host needs one"
    assert message in capfd.readouterr().err
    assert provisioner.request("provision", "phone0")["changed"] == ["phone0"]
    assert stat.S_IMODE(os.stat(provisioner.socket).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(provisioner.socket.parent).st_mode) == 0o700
