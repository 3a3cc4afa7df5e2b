"""Phones that `aosp-plugin provision` mounts, and a plugin that serves them; a tmpfs, really mounted, stands in."""

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.binder.driver import mounts
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import phone_mount
from aosp_plugin.cli.main import main
from aosp_plugin.config.keys import COMMAND_DEFAULTS, PHONE_DEFAULTS, Phones, Resource
from aosp_plugin.config.values import ProvisionedBy
from aosp_plugin.framework.errors import UnhealthyDeviceError
from tests.support import Clock
from tests.tmpfs_binderfs import Mounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which requires root")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mounts]:
    """Yield the directory of the phones, which does not exist yet."""
    with contextlib.closing(Mounts(tmp_path / "phones", monkeypatch)) as mounted:
        yield mounted


@pytest.fixture
def command(
    directory: Mounts, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str]]]:
    """Yield a function that runs `aosp-plugin provision`, and returns its exit code and what it logged."""
    before = logging.root.handlers[:], logging.root.level

    def run_command(count: int = 3, **keys: Any) -> tuple[int, str]:
        phones = {"count": count, "directory": str(directory.path)}
        file = tmp_path / "config.yaml"
        file.write_text(json.dumps({"version": "v1", "log_format": "json", "phones": phones, **keys}))
        code = main(["provision", f"--config={file}"])
        return code, capfd.readouterr().err

    yield run_command
    logging.root.handlers[:], logging.root.level = before


@pytest.fixture
def unprivileged(directory: Mounts, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after whose call every attempt to mount or unmount is refused."""
    return partial(directory.refuse_all, monkeypatch)


def backend_of(directory: Mounts, count: int = 3, clock: Clock | None = None) -> BinderBackend:
    """Return a backend of `provisioned_by: command` that has not scanned yet."""
    phones = Phones(count=count, directory=str(directory.path))
    defaults = {**PHONE_DEFAULTS, **COMMAND_DEFAULTS, "shared_devices": ()}
    resource = Resource(phones=phones, provisioned_by=ProvisionedBy.COMMAND, **defaults)
    return BinderBackend(Host(), resource, cdi_dir=str(directory.path.parent / "cdi"), clock=clock or Clock())


def served(directory: Mounts, count: int = 3, clock: Clock | None = None) -> BinderBackend:
    """Return such a backend after its first scans and host update."""
    backend = backend_of(directory, count, clock)
    rescan(backend)
    return backend


def rescan(backend: BinderBackend) -> None:
    backend.scan()
    backend.update_host()
    backend.scan()


def reasons(backend: BinderBackend) -> dict[str, str]:
    """Return why devices are unhealthy, in words, by ID; empty text for those that are healthy."""
    return {device.id: device.detail for device in backend.devices()}


def test_the_command_mounts_the_phones_once(directory: Mounts, command: Callable[..., tuple[int, str]]) -> None:
    code, log = command()
    assert (code, json.loads(log)["message"], json.loads(log)["added"]) == (0, "provisioned", 3)
    assert directory.mounted() == {"phone0": 1, "phone1": 1, "phone2": 1}
    before = [os.stat(directory.path / phone).st_dev for phone in directory.mounted()]
    code, log = command()
    assert (code, json.loads(log)["ordered"], json.loads(log)["added"]) == (0, 3, 0)
    assert [os.stat(directory.path / phone).st_dev for phone in directory.mounted()] == before


def test_the_command_says_which_phone_it_cannot_mount_and_mounts_the_others(
    directory: Mounts, command: Callable[..., tuple[int, str]]
) -> None:
    """One phone is no reason to keep the plugin of the node from starting."""
    (directory.path / "phone1").mkdir(parents=True)
    directory.mount_other("phone1")
    code, log = command()
    warning, summary = map(json.loads, log.splitlines())
    assert code == 0
    assert (warning["level"], warning["device"]) == ("warning", "phone1")
    assert "another file system is mounted in place of the phone's binderfs: unmount it" in warning["error"]
    assert summary["added"] == 2
    assert reasons(served(directory))["phone1"].startswith("foreign-mount")


def test_the_command_fails_on_a_kernel_without_binderfs(
    command: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "BINDERFS", "no-such-file-system")
    code, log = command()
    assert code == 1
    assert log.startswith("aosp-plugin: aosp.io/phone: cannot mount a binderfs on")
    assert "modprobe binder_linux, or boot a kernel with CONFIG_ANDROID_BINDERFS" in log


def test_the_command_fails_without_the_right_to_mount_only_if_something_is_missing(
    command: Callable[..., tuple[int, str]], unprivileged: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    command()
    fill = phone_mount.fill
    unprivileged()
    monkeypatch.setattr(phone_mount, "fill", fill)
    assert command()[0] == 0
    code, log = command(count=4)
    assert code == 1
    assert "cannot mount" in log


@pytest.mark.parametrize("keys", [{"phones": None}, {"api": "dra"}], ids=["found devices", "claims"])
def test_the_command_says_that_there_is_nothing_to_provision(
    directory: Mounts, command: Callable[..., tuple[int, str]], keys: dict[str, Any]
) -> None:
    code, log = command(**keys)
    assert (code, json.loads(log)["message"]) == (0, "nothing to provision")
    assert not directory.path.exists()


def test_the_command_refuses_a_directory_that_leads_below_dev(
    directory: Mounts, command: Callable[..., tuple[int, str]]
) -> None:
    directory.path.symlink_to("/dev/shm")
    code, log = command()
    assert code == 2
    assert "every device below /dev" in log


def test_the_plugin_serves_the_phones_without_a_right(
    directory: Mounts, command: Callable[..., tuple[int, str]], unprivileged: Callable[[], None]
) -> None:
    command()
    unprivileged()
    backend = served(directory)
    assert reasons(backend) == {"phone0": "", "phone1": "", "phone2": ""}
    assert not backend.pre_start_required
    backend.check_host()
    paths = [node.host_path for node in backend.allocate(["phone1"]).devices]
    assert f"{directory.path}/phone1/hwbinder" in paths


def test_phones_that_are_not_mounted_are_listed_with_the_remedy(
    directory: Mounts, unprivileged: Callable[[], None]
) -> None:
    unprivileged()
    backend = served(directory)
    remedy = "not-provisioned: no binderfs is mounted for it: restart the plugin's pod, or run aosp-plugin provision"
    assert list(reasons(backend)) == ["phone0", "phone1", "phone2"]
    assert all(reason.startswith(remedy) for reason in reasons(backend).values())
    with pytest.raises(UnhealthyDeviceError, match="not-provisioned: no binderfs is mounted for it"):
        backend.allocate(["phone1"])
