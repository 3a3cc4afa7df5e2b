"""Health: why a binder device, and a device set, is unhealthy."""

from __future__ import annotations

import itertools

import pytest

from aosp_plugin.binder.discovery.binder_device import BinderDevice, FileSystem, Identity, Kind
from aosp_plugin.binder.discovery.health import Reason, Verify, aggregate, evaluate, evaluate_recreation

FS, NEW_FS = (70, 1), (70, 2)
OTHER_REASONS = [reason for reason in Reason if reason not in {Reason.MISSING, Reason.INCOMPLETE}]


def binder_device(kind: Kind = Kind.BINDERFS, file_system: FileSystem = FS) -> BinderDevice:
    """Return a binder device; it exists unless its kind is ABSENT."""
    identity = None if kind is Kind.ABSENT else Identity(file_system[0], 1, 2, file_system[1])
    return BinderDevice("b1", "/dev/b1", kind, identity)


LEVELS = {
    Kind.BINDERFS: (None, None, None, None),
    Kind.CDEV: (None, None, None, None),
    Kind.STAND_IN: (None, None, Reason.NOT_BINDER, Reason.NOT_BINDER),
    Kind.FILE: (None, Reason.NOT_A_DEVICE, Reason.NOT_A_DEVICE, Reason.NOT_A_DEVICE),
    Kind.OTHER: (Reason.NOT_A_DEVICE,) * 4,
    Kind.ABSENT: (Reason.MISSING,) * 4,
}
"""The reason for each kind at the levels file, char, binder and probe, if the probe succeeds."""


@pytest.mark.parametrize("file_system", [None, FS])
@pytest.mark.parametrize("kind", LEVELS)
def test_evaluate_applies_the_level_to_the_kind(kind: Kind, file_system: FileSystem | None) -> None:
    reasons = [evaluate(binder_device(kind), verify, file_system, lambda _device: True) for verify in Verify]
    assert tuple(reasons) == LEVELS[kind]


@pytest.mark.parametrize("verify", Verify)
def test_device_on_another_file_system_is_replaced_at_every_level(verify: Verify) -> None:
    """The device is not probed."""

    def probe(_device: BinderDevice) -> bool:
        raise AssertionError

    assert evaluate(binder_device(file_system=NEW_FS), verify, FS, probe) is Reason.REPLACED


def test_file_system_zero_is_not_any_file_system() -> None:
    """Zero is a valid st_dev; only None means any file system."""
    assert evaluate(binder_device(file_system=FS), Verify.CHAR, (0, 0)) is Reason.REPLACED
    assert evaluate(binder_device(file_system=(0, 0)), Verify.CHAR, (0, 0)) is None


def test_kind_takes_precedence_over_the_file_system() -> None:
    assert evaluate(binder_device(Kind.FILE, NEW_FS), Verify.CHAR, FS) is Reason.NOT_A_DEVICE
    assert evaluate(binder_device(Kind.STAND_IN, NEW_FS), Verify.BINDER, FS) is Reason.NOT_BINDER


@pytest.mark.parametrize("verify", Verify)
def test_only_level_probe_opens_the_device(verify: Verify) -> None:
    probed: list[BinderDevice] = []

    def probe(device: BinderDevice) -> bool:
        probed.append(device)
        return False

    reason = evaluate(binder_device(), verify, None, probe)
    if verify is Verify.PROBE:
        assert (reason, probed) == (Reason.PROBE_FAILED, [binder_device()])
    else:
        assert (reason, probed) == (None, [])


def test_level_probe_without_a_probe_accepts_the_device() -> None:
    """An allocation does not probe."""
    assert evaluate(binder_device(), Verify.PROBE, FS) is None


@pytest.mark.parametrize(
    ("kind", "failed", "reason"),
    [
        (Kind.BINDERFS, False, None),
        (Kind.BINDERFS, True, Reason.NOT_RECREATED),
        (Kind.CDEV, False, Reason.NOT_RECREATED),
        (Kind.FILE, False, Reason.NOT_RECREATED),
        (Kind.ABSENT, False, None),
        (Kind.ABSENT, True, Reason.NOT_RECREATED),
    ],
)
def test_device_that_failed_or_cannot_be_recreated_is_not_recreated(
    kind: Kind, *, failed: bool, reason: Reason | None
) -> None:
    assert evaluate_recreation(binder_device(kind), failed=failed) is reason


def test_unknown_device_needs_no_recreation() -> None:
    assert evaluate_recreation(None, failed=False) is None


def test_set_of_healthy_devices_is_healthy() -> None:
    assert aggregate("phone", [("a", None), ("b", None)]) is None
    assert aggregate("phone", []) is None


def test_reasons_are_in_order_of_precedence() -> None:
    """Each check implies that those before it passed; ``aggregate`` relies on it."""
    assert list(Reason) == [
        "missing",
        "incomplete",
        "not-a-device",
        "not-binder",
        "replaced",
        "not-recreated",
        "probe-failed",
    ]


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(OTHER_REASONS, 2)))
def test_set_has_the_reason_with_the_highest_precedence(first: Reason, second: Reason) -> None:
    """The detail names the members with this reason only."""
    members = [("a", second), ("b", None), ("c", first), ("d", second)]
    assert aggregate("phone", members) == aggregate("phone", members[::-1]) == (first, f"{first}: c")
    assert aggregate("phone", [("a", first), ("b", second), ("c", first)]) == (first, f"{first}: a, c")


@pytest.mark.parametrize("other", [None, *OTHER_REASONS])
def test_set_with_a_missing_member_is_incomplete(other: Reason | None) -> None:
    members = [("c", Reason.MISSING), ("a", other), ("b", Reason.MISSING)]
    assert aggregate("phone", members) == (Reason.INCOMPLETE, "incomplete: missing c, b")


def test_set_without_any_member_is_missing() -> None:
    members = [("a", Reason.MISSING), ("b", Reason.MISSING)]
    assert aggregate("phone", members) == (Reason.MISSING, "missing: a, b")


def test_detail_of_a_single_device_is_its_reason() -> None:
    """Its name is the device ID. A named set with one member has another ID."""
    assert aggregate("b1", [("b1", Reason.REPLACED)]) == (Reason.REPLACED, "replaced")
    assert aggregate("7", [("binder7", Reason.MISSING)]) == (Reason.MISSING, "missing: binder7")
