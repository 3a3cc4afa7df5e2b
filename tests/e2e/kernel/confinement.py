"""In the guest: confine containers by what containerd confines them with by default, seccomp and AppArmor.

The program ``confinement`` prints both, from containerd's Go module. With ``--confined``, the guest has its path in the
environment. Otherwise no container is confined but by the seccomp profile for phones.
"""

import functools
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Final

from tests.e2e.common import oci
from tests.e2e.kernel.world import PROJECT, variable

DEFAULT_PROFILE: Final = "cri-containerd.apparmor.d"
"""containerd's name for it (internal/cri/sputil/securityprofile_linux.go ``appArmorDefaultProfileName``)."""
PHONE_PROFILE: Final = "aosp-phone"
"""The profile for phones, of deploy/apparmor."""
PHONE_FILTER: Final = PROJECT / "deploy/seccomp/aosp-phone.json"
"""The seccomp profile for phones."""

VARIABLE: Final = variable("confinement")
CONFINED: Final = VARIABLE in os.environ
"""Whether the containers of this guest are confined."""


def load() -> None:
    """Load the AppArmor profiles into the guest's kernel."""
    subprocess.run(("mount", "-t", "securityfs", "securityfs", "/sys/kernel/security"), check=True)
    profiles = (
        _print("apparmor", DEFAULT_PROFILE),
        (PROJECT / "deploy/apparmor" / PHONE_PROFILE).read_text(encoding="utf-8"),
    )
    for profile in profiles:
        subprocess.run(("apparmor_parser", "--replace", "--skip-cache"), input=profile, text=True, check=True)


@functools.cache
def of(capabilities: tuple[str, ...], profile: str = DEFAULT_PROFILE) -> oci.Confinement:
    """Return the confinement of a container with these capabilities, which decide what the filter allows."""
    if not CONFINED:
        return oci.UNCONFINED
    return oci.Confinement(json.loads(_print("seccomp", *capabilities)), profile)


def of_phone() -> oci.Confinement:
    """Return the confinement of a phone: both of its profiles, or without ``--confined`` the filter alone."""
    return oci.Confinement(json.loads(PHONE_FILTER.read_text(encoding="utf-8")), PHONE_PROFILE if CONFINED else "")


def _print(*arguments: str) -> str:
    command: Sequence[str] = (os.environ[VARIABLE], *arguments)
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
