"""In the guest: take all minor numbers of binderfs: ``DIRECTORY``. The caller gives it a mount namespace.

Prints what it has taken and how the kernel refuses more, and keeps all until it is ended.
"""

import fcntl
import itertools
import os
import signal
import sys

from aosp_plugin.binder.driver import binderfs
from aosp_plugin.binder.driver.binderfs import DevicesExhaustedError
from tests.e2e.kernel import binderfs_mounts

MOUNTS = 300
"""To save time: a container takes all by mounts, as the device cgroup denies it each binder-control. Here, devices in
the first binderfs take what these mounts leave."""


def main(directory: str) -> None:
    """Take them, report, and wait."""
    paths = [f"{directory}/{number}" for number in range(MOUNTS)]
    for path in paths:
        os.makedirs(path)
        binderfs_mounts.mount(path)
    devices, refusal = _fill(paths[0])
    try:
        binderfs_mounts.mount(paths[0])
        refused = "ok"
    except DevicesExhaustedError as error:
        refused = str(error.__cause__)
    sys.stdout.write(f"taken: {MOUNTS} binderfs, {devices} devices; BINDER_CTL_ADD: {refusal}; mount: {refused}\n")
    sys.stdout.flush()
    signal.pause()


def _fill(directory: str) -> tuple[int, OSError]:
    control = binderfs.open_control(directory)
    for number in itertools.count():
        try:
            fcntl.ioctl(control, binderfs.BINDER_CTL_ADD, binderfs.add_request(f"taken{number}"))
        except OSError as error:
            return number, error
    raise AssertionError


if __name__ == "__main__":
    main(*sys.argv[1:])
