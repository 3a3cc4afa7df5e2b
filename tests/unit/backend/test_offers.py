"""What identifies a device on this host, and so shows that two resources have found the same one."""

import pytest

from aosp_plugin.backend.found_devices import FoundDevices
from aosp_plugin.backend.offers import Offers
from aosp_plugin.binder.devices.scanner import BinderDevice, FileIdentity, Kind
from aosp_plugin.binder.devices.sets import DeviceSet

FIRST, SECOND = "aosp.io/first", "aosp.io/second"


def found(kind: Kind, identity: FileIdentity, path: str, directory: str = "") -> FoundDevices:
    """Return a resource with one device."""
    device = BinderDevice("b1", "/dev/b1", kind, identity, directory, path)
    return FoundDevices(sets={"b1": DeviceSet("b1", ("b1",))}, binder_devices={"b1": device})


IN_BINDERFS = found(Kind.BINDERFS, FileIdentity(70, 100, 5, 1), "/x/b1", "/x")
PLAIN = found(Kind.CDEV, FileIdentity(5, 100, 7), "/dev/b1")


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        pytest.param(
            IN_BINDERFS,
            found(Kind.BINDERFS, FileIdentity(70, 101, 6, 1), "/y/b1", "/y"),
            True,
            id="recreated device of a binderfs with two mounts",
        ),
        pytest.param(
            IN_BINDERFS,
            found(Kind.BINDERFS, FileIdentity(70, 100, 5, 1), "/x/b2", "/x"),
            False,
            id="number of a device that was recreated since",
        ),
        pytest.param(
            IN_BINDERFS,
            found(Kind.BINDERFS, FileIdentity(70, 100, 5, 2), "/y/b1", "/y"),
            False,
            id="later binderfs",
        ),
        pytest.param(PLAIN, found(Kind.CDEV, FileIdentity(6, 100, 8), "/y/b1"), True, id="copy of a misc device"),
        pytest.param(PLAIN, found(Kind.CDEV, FileIdentity(5, 101, 8), "/y/b1"), False, id="other misc device"),
        pytest.param(
            found(Kind.STAND_IN, FileIdentity(5, 100, 7), "/dev/b1"),
            found(Kind.STAND_IN, FileIdentity(5, 100, 8), "/y/b1"),
            False,
            id="other stand-in with the same number",
        ),
    ],
)
def test_offered_device_is_known_again(first: FoundDevices, second: FoundDevices, is_same: bool) -> None:  # noqa: FBT001
    offers = Offers()
    offers.take(FIRST, first.identified(), {"b1"})
    assert bool(offers.of_others(SECOND, second.identified())) is is_same
