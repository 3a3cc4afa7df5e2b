"""Recreation: a fresh binder device replaces a used one before the next container starts.

A binder device remembers the user of its first context manager for as long as it exists, and refuses every other user
with EPERM (drivers/android/binder.c ``binder_ioctl_set_ctx_mgr``). A process of the previous tenant that still holds
the device stays in its context, next to the processes of the new tenant. Neither can be undone on an existing device; a
fresh one has a context of its own.

The fresh device is created under a temporary name and renamed over the old one, which a binderfs allows
(drivers/android/binderfs.c ``binderfs_rename``). So the name always exists, and a crash leaves at most a temporary
device, which the next recreation of the same device removes. Unlinking the old device first would lose the name in a
crash between both steps. It would also lose the name if ``max=`` is reached and a process holds the old device, which
counts until that process ends.

The minor number and the inode of the device change. The file system does not, so that ``store`` does not report the
device as replaced. The driver's logs (binder_logs) name the new context by the temporary name, permanently. A listing
of the binderfs that needs more than one getdents call (from about 800 devices on) may miss a device that is recreated
meanwhile, because the kernel inserts new files at the front. A lookup of the name does not miss it, and neither does a
listing of links to the devices.
"""

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from aosp_plugin.binder.devices.scanner import BinderDevice, Kind
from aosp_plugin.binder.devices.sets import DeviceSet, natural_sort
from aosp_plugin.binder.devices.store import DeviceStore
from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import BinderfsError, Step
from aosp_plugin.binder.driver.host import Host, HostError
from aosp_plugin.binder.provision.device_links import DeviceLinks, devices_below
from aosp_plugin.binder.provision.phone_mount import MODE
from aosp_plugin.binder.provision.phone_provisioner import PhoneProvisioner
from aosp_plugin.binder.provision.provisioner_socket import ProvisionerError

LOG = logging.getLogger(__name__)

TEMPORARY_PREFIX = ",+"
"""The temporary name of a device is this and its own name.

No device prefix starts with a comma (``sets.name_problem``), so a scan neither lists such a device nor warns about it.
Two bytes leave room for every device ID: 63 characters of up to 4 bytes, and a binderfs accepts 255 bytes.
"""


class _Failure(NamedTuple):
    """A failed replacement of a phone or a binder device."""

    files: Mapping[str, BinderDevice | None]
    """Its binder devices by name, as of the failure."""
    cause: str


class Recreator:
    """Recreates the binder devices of one resource and remembers failures.

    To be used in one thread, so that no retry happens between the recreation of a device for a container and the start
    of that container.
    """

    def __init__(self, host: Host, store: DeviceStore, provisioner: PhoneProvisioner | None) -> None:
        """``provisioner`` mounts a fresh binderfs for a phone; without it, each device is replaced in its binderfs."""
        self._host = host
        self._store = store
        self._provisioner = provisioner
        self._failed: Mapping[str, _Failure] = {}
        """The last failure of each phone or binder device that could not be replaced. Replaced, never changed."""

    @property
    def failed(self) -> dict[str, str]:
        """Why binder devices could not be recreated, by name."""
        return {name: failure.cause for failure in self._failed.values() for name in failure.files}

    def recreate(self, group: DeviceSet) -> None:
        """Replace the binder devices of a device set with fresh ones. Raises HostError; the failure is remembered."""
        if self._provisioner is not None:
            self._recreate(group.id, group.members)
        else:
            for name in group.members:
                self._recreate(name, [name])

    def retry(self) -> None:
        """Retry failed recreations. A device whose recreation failed is in no container: PreStartContainer fails.

        One that was removed is forgotten, and one that another plugin has replaced, as in a rolling update that was
        rolled back: that plugin may have given it to a container.
        """
        self._failed = {name: each for name, each in self._failed.items() if self._files(each.files) == each.files}
        for replaced in natural_sort([*self._failed]):
            try:
                self._recreate(replaced, [*self._failed[replaced].files])
            except ProvisionerError:  # nor would it answer for the others
                return
            except HostError as error:
                LOG.debug("recreation failed again", extra={"device": replaced, "error": str(error)})

    def _recreate(self, replaced: str, names: Sequence[str]) -> None:
        """Replace a phone or a binder device, of which ``names`` are the binder devices. Raises HostError."""
        others = {other: members for other, members in self._failed.items() if other != replaced}
        try:
            self._replace(replaced, names)
        except BaseException as error:
            self._failed = {**others, replaced: _Failure(self._files(names), str(error))}
            raise
        self._failed = others

    def _replace(self, replaced: str, names: Sequence[str]) -> None:
        if self._provisioner is not None:
            self._provisioner.replace(replaced)
            # Another file system at the path of a known device would otherwise count as replaced.
            self._store.renew(names)
        elif (device := self._store.devices.get(replaced)) is not None:
            recreate_device(device, self._host)
        else:
            raise HostError(f"binder device {replaced!r} does not exist")

    def _files(self, names: Iterable[str]) -> Mapping[str, BinderDevice | None]:
        """Return the binder devices with these names as of the last scan."""
        return {name: self._store.devices.get(name) for name in names}


def recreate_device(device: BinderDevice, host: Host) -> None:
    """Replace ``device`` with a fresh one that belongs to root and has the mode ``MODE``.

    Mode and owner of the old device are not kept, because a container may have changed both.

    Processes that hold the old device keep it, and share no context with the fresh one. After a failure the old device
    is unchanged. Raises DevicesExhaustedError if ``max=`` leaves no room for one more device, NotPermittedError, and
    BinderfsError for other causes, such as a device that is not in a binderfs.
    """
    path = _file_in_binderfs(device, host)
    directory, _, name = path.rpartition("/")
    temporary = f"{TEMPORARY_PREFIX}{name}"
    with binderfs.kernel_errors(Step.RECREATE, path):
        os.lstat(path)  # the name must exist
    binderfs.remove_device(directory, temporary)
    try:
        binderfs.add_device(directory, temporary)
        with binderfs.kernel_errors(Step.RECREATE, path):
            os.chmod(f"{directory}/{temporary}", MODE)
            os.rename(f"{directory}/{temporary}", path)
    except BaseException:
        with contextlib.suppress(HostError):
            binderfs.remove_device(directory, temporary)
        raise
    DeviceLinks(host).repair(devices_below(host, device.directory, [name]))


def _file_in_binderfs(device: BinderDevice, host: Host) -> str:
    """Return the path of the device's own file for this process. ``device.path`` may be a link to it."""
    if device.kind is not Kind.BINDERFS:
        raise BinderfsError(
            f"cannot recreate {device.path}: its kind is {device.kind}, and only devices in a binderfs can be recreated"
        )
    with binderfs.kernel_errors(Step.RECREATE, device.path):
        path = host.resolve(device.path)
    if path.rpartition("/")[0] != device.directory:
        raise BinderfsError(
            f"cannot recreate {device.path}: it is not in the directory of its binderfs: "
            f"mount the whole binderfs and link to the device, instead of binding the device alone"
        )
    return host.process_path(path)
