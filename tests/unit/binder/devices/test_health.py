"""Health: why a binder device, and a device set, is unhealthy."""

import itertools

from aosp_plugin.backend.found_devices import FoundDevices, HostState, device_problems
from aosp_plugin.binder.devices.health import HealthProblem, Reason, Verify, aggregate, first, requirement_missing
from aosp_plugin.binder.devices.scanner import BinderDevice, FileIdentity, FileSystem, Kind
from aosp_plugin.binder.devices.sets import DeviceSet
from aosp_plugin.binder.devices.store import evaluate

FS, NEW_FS = (70, 1), (70, 2)


LEVELS = {
    Kind.BINDERFS: (None, None, None, None),
    Kind.CDEV: (None, None, None, None),
    Kind.STAND_IN: (None, None, Reason.NOT_BINDER, Reason.NOT_BINDER),
    Kind.FILE: (None, Reason.NOT_A_DEVICE, Reason.NOT_A_DEVICE, Reason.NOT_A_DEVICE),
    Kind.OTHER: (Reason.NOT_A_DEVICE,) * 4,
    Kind.ABSENT: (Reason.MISSING,) * 4,
}
"""The reason for each kind at the levels file, char, binder and probe, if the probe succeeds."""


def device(kind: Kind, file_system: FileSystem = FS) -> BinderDevice:
    identity = None if kind is Kind.ABSENT else FileIdentity(file_system[0], 1, 2, file_system[1])
    return BinderDevice("b1", "/dev/b1", kind, identity)


def test_evaluate_applies_the_level_to_the_kind() -> None:
    """The kind takes precedence over the file system."""
    for kind, levels in LEVELS.items():
        for file_system in (None, FS, NEW_FS):
            reasons = [evaluate(device(kind), verify, file_system) for verify in Verify]
            replaced = Reason.REPLACED if file_system == NEW_FS else None
            assert reasons == [reason or replaced for reason in levels]
    assert evaluate(device(Kind.BINDERFS), Verify.FILE, (0, 0)) is Reason.REPLACED, "only None means any file system"


def test_set_is_unhealthy_because_of_its_members() -> None:
    """The detail of a single device is its reason, because its name is the device ID."""
    cases: list[tuple[str, dict[str, Reason | None], tuple[Reason, str] | None]] = [
        ("phone", {"a": None, "b": None}, None),
        ("phone", {"a": Reason.MISSING, "b": Reason.MISSING}, (Reason.MISSING, "missing: a, b")),
        ("phone", {"c": Reason.MISSING, "a": Reason.REPLACED}, (Reason.INCOMPLETE, "incomplete: missing c")),
        ("b1", {"b1": Reason.REPLACED}, (Reason.REPLACED, "replaced")),
        ("7", {"binder7": Reason.MISSING}, (Reason.MISSING, "missing: binder7")),
    ]
    for set_id, members, problem in cases:
        assert aggregate(set_id, list(members.items())) == problem


def test_first_problem_is_the_one_with_the_highest_precedence() -> None:
    """A binder device's own problem comes before another device, and that before the CDI spec, which lacks both."""
    requirement = requirement_missing(["/dev/fuse", "/dev/x"])
    assert requirement == (Reason.REQUIREMENT_MISSING, "requirement-missing: /dev/fuse, /dev/x")
    own, spec = HealthProblem(Reason.MISSING, "missing"), HealthProblem(Reason.NOT_IN_CDI_SPEC, "not-in-cdi-spec")
    assert first(own, requirement) == first(requirement, own) == own
    assert (
        first(spec, requirement)
        == first(requirement, spec)
        == first(requirement_missing([]), requirement)
        == requirement
    )
    assert first(None, None) is None


def test_set_has_the_reason_with_the_highest_precedence() -> None:
    """The detail names the members with this reason only. A set with a missing member is incomplete."""
    of_members = [reason for reason in Reason if reason not in {Reason.MISSING, Reason.INCOMPLETE}]
    for higher, lower in itertools.pairwise(of_members):
        members = [("a", lower), ("b", None), ("c", higher), ("d", lower)]
        assert aggregate("phone", members) == aggregate("phone", members[::-1]) == (higher, f"{higher}: c")


def test_reason_of_a_file_does_not_hide_one_with_a_higher_precedence() -> None:
    """A replaced device is open to a claim that has it; one whose recreation has failed may carry another context."""
    found = FoundDevices(
        sets={"b1": DeviceSet("b1", ("b1",))},
        binder_devices={"b1": device(Kind.BINDERFS)},
        reasons={"b1": Reason.REPLACED},
        state=HostState(not_recreated={"b1": ""}, lacking=frozenset({"b1"})),
    )
    assert device_problems(found) == {"b1": (Reason.NOT_RECREATED, "not-recreated")}
