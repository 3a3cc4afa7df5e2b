"""The binderfs mounts of phones: mounted, found, completed, replaced and removed, with real mounts of a tmpfs."""

import errno
import os
import stat

import pytest

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import BinderfsError
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.binder.provision import phone_mount
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from tests.tmpfs_binderfs import Mounts

TRIPLE = ["binder", "hwbinder", "vndbinder"]


def provisioner(directory: Mounts) -> PhoneProvisioner:
    return PhoneProvisioner(str(directory.path), Host())


def require_complete(directory: Mounts, *phones: str) -> None:
    """Require that each phone has its binder devices with their mode."""
    for phone in phones:
        assert sorted(binderfs.device_names(f"{directory.path}/{phone}")) == TRIPLE
        assert {stat.S_IMODE(os.stat(directory.path / phone / name).st_mode) for name in TRIPLE} == {0o666}
    assert directory.mounted() == dict.fromkeys(phones, 1)


def test_phone_has_three_binder_devices_whatever_the_kernel_creates(directory: Mounts) -> None:
    directory.kernel_devices = ("anbox-binder", "binder")
    assert provisioner(directory).provision(["phone0", "phone1"]) == ["phone0", "phone1"]
    require_complete(directory, "phone0", "phone1")


def test_phone_that_its_container_has_spoiled_is_mounted_again_and_the_others_are_restored(directory: Mounts) -> None:
    """A read-only binderfs takes no new device and no mode; the next phone is scanned nevertheless."""
    keeper = provisioner(directory)
    keeper.provision(["phone0", "phone1", "phone2"])
    (directory.path / "phone0/binder").chmod(0)
    (directory.path / "phone1/hwbinder").unlink()
    (directory.path / "phone2/vndbinder").unlink()
    for phone in ("phone0", "phone1"):
        directory.make_read_only(phone)
    assert keeper.provision(["phone0", "phone1", "phone2"]) == ["phone0", "phone1"]
    assert keeper.error_text == ""
    require_complete(directory, "phone0", "phone1", "phone2")


def test_phone_is_not_replaced_because_the_process_has_no_descriptors_left(
    directory: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its container would lose the binderfs of a healthy phone."""
    keeper = provisioner(directory)
    keeper.provision(["phone0"])
    before = os.stat(directory.path / "phone0")

    def exhausted(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(phone_mount, "fill", exhausted)
    assert keeper.provision(["phone0"]) == []
    assert "Too many open files" in keeper.error_text
    assert os.path.samestat(os.stat(directory.path / "phone0"), before)


def test_directory_that_another_process_removes_meanwhile_is_no_phone(
    directory: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the former process of a driver does in a rolling update."""
    (directory.path / "phone0").mkdir(parents=True)
    listdir = os.listdir

    def remove_and_list(path: str) -> list[str]:
        if path.endswith("/phone0"):
            os.rmdir(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", remove_and_list)
    assert provisioner(directory).survey() == set()


def test_phone_whose_directory_is_in_use_does_not_affect_the_others(directory: Mounts) -> None:
    directory.path.mkdir()
    (directory.path / "phone1").symlink_to("/run")
    keeper = provisioner(directory)
    assert keeper.provision(["phone0", "phone1", "phone2"]) == ["phone0", "phone2"]
    assert "phone1 is not a directory" in keeper.error_text
    assert keeper.foreign == {"phone1"}, "a link may lead to binder devices of others"


def test_other_file_system_is_recognised_while_nothing_may_be_mounted(directory: Mounts) -> None:
    """A mount that does not propagate keeps the plugin from mounting, not from rejecting what others mounted."""
    directory.mount_other("..", shared=False)
    directory.share("..")
    provisioner(directory).provision(["phone0", "phone1"])
    (directory.path / "phone1/hwbinder").unlink()
    directory.mount_tmpfs_with("phone0", *TRIPLE)
    directory.make_private("..")
    keeper = PhoneProvisioner("/phones", Host(str(directory.path.parent)))
    assert keeper.provision(["phone0", "phone1", "phone2"]) == []
    assert keeper.foreign == {"phone0"}
    assert sorted(binderfs.device_names(f"{directory.path}/phone1")) == TRIPLE


def test_phone_that_is_covered_while_it_is_restored_is_not_mounted_again(
    directory: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pod may still have the binderfs below."""
    keeper = provisioner(directory)
    keeper.provision(["phone0"])

    def cover(path: str, _name: str) -> None:
        directory.mount_other("phone0")
        raise BinderfsError(f"{path}/binder: {os.strerror(errno.ENOENT)}")

    monkeypatch.setattr(phone_mount, "fill", cover)
    assert keeper.provision(["phone0"]) == []
    assert keeper.foreign == {"phone0"}
    assert directory.mounted() == {"phone0": 2}


def test_second_path_to_a_phone_is_foreign(directory: Mounts) -> None:
    """Two containers would share their binder devices."""
    keeper = provisioner(directory)
    keeper.provision(["phone0", "phone1"])
    directory.bind("phone1", "phone0")
    assert provisioner(directory).provision(["phone0", "phone1"]) == []
    keeper.provision(["phone0", "phone1"])
    assert keeper.foreign == {"phone0"}


def test_failed_mount_leaves_no_directory_and_other_mounts_are_not_attempted(
    directory: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = provisioner(directory)
    attempts: list[str] = []

    def refuse(path: str, _source: str) -> None:
        attempts.append(path)
        raise BinderfsError("this kernel has no binderfs")

    with monkeypatch.context() as patch:
        patch.setattr(binderfs, "create_mount", refuse)
        assert keeper.provision(["phone0", "phone1"]) == []
        assert keeper.error_text == "this kernel has no binderfs"
    assert attempts == [f"{directory.path}/phone0"]
    assert not directory.path.exists()
    assert keeper.provision(["phone0", "phone1"]) == ["phone0", "phone1"]
    assert keeper.error_text == ""


def test_mounts_must_propagate_from_a_container_to_the_host(directory: Mounts) -> None:
    root = directory.path.parent
    directory.mount_other("..", shared=False)
    keeper = PhoneProvisioner("/phones", Host(str(root)))
    with pytest.raises(BinderfsError, match=r"mounts in .*/phones do not propagate to the host: .* Bidirectional"):
        keeper.check()
    assert keeper.provision(["phone0"]) == []
    assert "do not propagate to the host" in keeper.error_text
    directory.share("..")
    assert keeper.provision(["phone0"]) == ["phone0"]
    directory.mount_other("..", shared=False)
    assert keeper.provision(["phone0"]) == []
    assert "do not propagate to the host" in keeper.error_text, "the mount that is covered was checked"
    directory.unmount("..")


def test_phone_is_not_replaced_where_the_host_would_keep_the_old_one(directory: Mounts) -> None:
    """A container of the plugin that has lost mountPropagation: the next tenant would get the last one's binderfs."""
    directory.mount_other("..", shared=False)
    directory.share("..")
    host = Host(str(directory.path.parent))
    PhoneProvisioner("/phones", host).provision(["phone0"])
    directory.make_private("..")
    before = os.stat(directory.path / "phone0")
    keeper = PhoneProvisioner("/phones", host)
    assert keeper.provision(["phone0"]) == []
    with pytest.raises(BinderfsError, match="do not propagate to the host"):
        keeper.replace("phone0")
    assert os.path.samestat(os.stat(directory.path / "phone0"), before)


def test_no_more_phones_are_removed_than_the_limit(directory: Mounts) -> None:
    keeper = provisioner(directory)
    phones = keeper.provision(["phone0", "phone1", "phone2", "phone3"])
    assert keeper.remove(phones, 3) == ["phone0", "phone1", "phone2"]
    require_complete(directory, "phone3")


def test_links_to_binder_devices_come_and_go_with_phones(directory: Mounts) -> None:
    """Each fresh binderfs has other numbers, which are linked at once; those of the one before go later.

    The links of a phone that is removed go with it, also if its mount was lost before.
    """
    directory.number_devices()
    keeper = provisioner(directory)
    keeper.provision(["phone0", "phone1"])
    first = directory.linked()
    assert first == directory.expected_links("phone0", "phone1")
    assert len(first) == 6
    keeper.replace("phone0")
    fresh = directory.expected_links("phone0", "phone1")
    assert fresh.items() <= directory.linked().items()
    keeper.provision(["phone0", "phone1"])
    assert directory.linked() == fresh != first
    assert keeper.remove(["phone0"], 1) == ["phone0"]
    assert directory.linked() == directory.expected_links("phone1")
    keeper.mount("phone0")
    assert directory.linked() == directory.expected_links("phone0", "phone1")
    directory.unmount("phone1")
    for phone in ("phone0", "phone1"):
        keeper.unmount(phone)
    assert directory.linked() == {}


def test_links_to_binder_devices_are_restored(directory: Mounts) -> None:
    """After a lost link, and after a process that was killed between unmount and removal."""
    directory.number_devices()
    provisioner(directory).provision(["phone0", "phone1"])
    for link in directory.expected_links("phone0"):
        (directory.links / link).unlink()
    directory.unmount("phone1")
    keeper = provisioner(directory)
    keeper.provision(["phone0"])
    assert directory.linked() == directory.expected_links("phone0")
    directory.unmount("phone0")
    keeper.provision([])
    assert directory.linked() == {}
