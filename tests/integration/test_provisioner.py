"""A plugin without privileges, and the privileged process that mounts its phones; a tmpfs stands in for binderfs."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.offered_phones import SURPLUS_INTERVAL, Allocated
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import provisioner_socket
from aosp_plugin.config.keys import PHONE_DEFAULTS, Phones, Resource
from aosp_plugin.config.values import ProvisionedBy
from aosp_plugin.framework.errors import BackendError, UnhealthyDeviceError
from tests.support import Clock
from tests.tmpfs_binderfs import Mounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which requires root")

PROGRAM = (sys.executable, "-m", "tests.e2e.cluster.storm.tmpfs_phones")


class Provisioner:
    """`aosp-plugin provisioner` as a process."""

    def __init__(self, directory: Path, work: Path) -> None:
        self.directory = directory
        self.socket = work / "run" / "provisioner.sock"
        self.environment = {**os.environ, "PROVISIONER_SOCKET": str(self.socket)}
        self._file = work / "provisioner.yaml"
        self._process: subprocess.Popen[str] | None = None

    def start(self, count: int = 3, logged: str = "", **keys: Any) -> None:
        """Start the process, and wait until it listens; ``logged`` is what it logs before."""
        phones = {"count": count, "directory": str(self.directory)}
        document = {"version": "v1", "phones": phones, **keys}
        self._file.write_text(json.dumps(document))
        self._process = subprocess.Popen(  # noqa: S603 - a fixed command
            (*PROGRAM, "provisioner", f"--config={self._file}"),
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        assert self._process.stderr is not None
        for text in filter(None, [logged, "provisioner started"]):
            assert text in self._process.stderr.readline()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the process, and return its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.communicate()
        code, self._process = self._process.returncode, None
        return code

    def close(self) -> None:
        """End the process if it runs."""
        if self._process is not None:
            self.stop(signal.SIGKILL)

    def ask(self, request: object) -> Any:
        """Send a request as a plugin would that an attacker controls; return the answer, None if there is none."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            connection.sendall(request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n")
            connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile().read()
        return json.loads(answer) if answer else None

    def request(self, operation: str, *phones: str, directory: str | None = None) -> Any:
        """Ask for phones."""
        where = directory or str(self.directory)
        return self.ask({"directory": where, "operation": operation, "phones": [*phones], "limit": 10})


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounts]:
    """Yield the directory of the phones. This process, the plugin, has no right to mount anything."""
    with contextlib.closing(Mounts(tmp_path / "phones", monkeypatch)) as mounted:
        mounted.refuse_all(monkeypatch)
        yield mounted


@pytest.fixture
def provisioner(directory: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provisioner]:
    """Yield the privileged process, which is not started."""
    with contextlib.closing(Provisioner(directory.path, tmp_path)) as process:
        monkeypatch.setattr(provisioner_socket, "PROVISIONER_SOCKET", str(process.socket))
        yield process


def backend_of(provisioner: Provisioner, count: int = 3, clock: Clock | None = None) -> BinderBackend:
    """Return the backend of a plugin that asks the provisioner; it has not scanned yet."""
    resource = Resource(
        phones=Phones(count=count, directory=str(provisioner.directory)),
        provisioned_by=ProvisionedBy.PROVISIONER,
        **{**PHONE_DEFAULTS, "shared_devices": ()},
    )
    return BinderBackend(Host(), resource, cdi_dir=str(provisioner.directory.parent / "cdi"), clock=clock or Clock())


def rescan(backend: BinderBackend) -> None:
    backend.scan()
    backend.update_host()
    backend.scan()


def served(provisioner: Provisioner, count: int = 3, clock: Clock | None = None) -> BinderBackend:
    """Return such a backend after its first scans and host update."""
    backend = backend_of(provisioner, count, clock)
    rescan(backend)
    return backend


def reasons(backend: BinderBackend) -> dict[str, str]:
    return {device.id: device.detail for device in backend.devices()}


def numbers(directory: Mounts) -> dict[str, int]:
    """Return which file system each phone has."""
    return {phone: os.stat(directory.path / phone).st_dev for phone in directory.mounted()}


def test_each_container_gets_a_fresh_binderfs_while_the_tenant_before_keeps_the_old_one(
    directory: Mounts, provisioner: Provisioner
) -> None:
    provisioner.start()
    backend = served(provisioner)
    before = numbers(directory)
    left_behind = os.open(directory.path / "phone1" / "binder", os.O_PATH)
    try:
        backend.pre_start(["phone1"])
        assert os.fstat(left_behind).st_dev == before["phone1"]
    finally:
        os.close(left_behind)
    after = numbers(directory)
    assert after.pop("phone1") != before.pop("phone1")
    assert after == before, "another phone was replaced"
    rescan(backend)
    assert reasons(backend) == {"phone0": "", "phone1": "", "phone2": ""}


def test_phones_wait_for_a_provisioner_that_does_not_run_yet(directory: Mounts, provisioner: Provisioner) -> None:
    backend = backend_of(provisioner)
    backend.scan()
    with pytest.raises(BackendError, match=r"the provisioner at \S+ does not answer: No such file or directory: its"):
        backend.update_host()
    provisioner.start()
    rescan(backend)
    assert directory.mounted().keys() == {"phone0", "phone1", "phone2"}


def test_no_container_starts_without_a_fresh_binderfs(directory: Mounts, provisioner: Provisioner) -> None:
    """While the provisioner is away, and until the phone has been replaced after that."""
    provisioner.start()
    backend = served(provisioner)
    assert provisioner.stop(signal.SIGKILL) == -signal.SIGKILL
    with pytest.raises(UnhealthyDeviceError, match=r"could not be recreated: the provisioner at .* does not answer: "):
        backend.pre_start(["phone1"])
    backend.scan()
    assert reasons(backend)["phone1"].startswith("not-recreated")
    before = numbers(directory)
    provisioner.start()
    rescan(backend)
    assert reasons(backend)["phone1"] == ""
    assert numbers(directory)["phone1"] != before["phone1"]


def test_surplus_phones_are_removed_when_they_are_free(directory: Mounts, provisioner: Provisioner) -> None:
    provisioner.start()
    served(provisioner)
    provisioner.stop()
    provisioner.start(count=1)
    clock = Clock()
    backend = served(provisioner, count=1, clock=clock)
    backend.set_allocated(Allocated(frozenset({"phone2"}), clock.now + SURPLUS_INTERVAL + 1))
    rescan(backend)
    assert directory.mounted().keys() == {"phone0", "phone2"}


def test_the_provisioner_refuses_what_is_not_its_own(directory: Mounts, provisioner: Provisioner) -> None:
    provisioner.start()
    served(provisioner)
    before = numbers(directory)
    requests = (
        ("provision", "phone3"),
        ("replace", "phone3"),
        ("replace", "../phone1"),
        ("replace", "phone1/binder"),
        ("provision", ""),
        ("unmount", "phone1"),
    )
    for operation, phone in requests:
        answer = provisioner.request(operation, phone)
        assert answer["error"] or answer["known"]["obstacles"]
        assert answer["changed"] == []
        assert numbers(directory) == before
    assert {path.name for path in directory.path.iterdir()} == {"phone0", "phone1", "phone2"}


def test_the_provisioner_removes_no_phone_of_the_configuration_and_nothing_else(
    directory: Mounts, provisioner: Provisioner, tmp_path: Path
) -> None:
    provisioner.start()
    served(provisioner)
    (tmp_path / "other").mkdir()
    assert provisioner.request("remove", "phone1", "../other", "other")["changed"] == []
    assert "no phones in /etc" in provisioner.request("replace", "phone1", directory="/etc")["error"]
    assert directory.mounted().keys() == {"phone0", "phone1", "phone2"}
    assert (tmp_path / "other").is_dir()


def test_the_provisioner_survives_requests_that_make_no_sense(provisioner: Provisioner) -> None:
    provisioner.start()
    for request in (b"", b"\n", b"\xff\xfe\n", b"[]\n", b'{"directory": {}}\n', b"1" * 3_000_000):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it reads no endless request
            assert provisioner.ask(request) is None
    assert set(reasons(served(provisioner)).values()) == {""}


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
        assert set(reasons(served(provisioner)).values()) == {""}
        ended.set()
        sending.result()


def test_only_root_can_connect_and_a_signal_ends_the_provisioner_orderly(provisioner: Provisioner) -> None:
    """The directory of the socket is created on a host that has none."""
    provisioner.start()
    assert stat.S_IMODE(os.stat(provisioner.socket).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(provisioner.socket.parent).st_mode) == 0o700
    assert provisioner.stop() == 0
