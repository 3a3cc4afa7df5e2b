"""The text that ``aosp-plugin status`` prints."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from aosp_plugin.cli.summary import ranges, summary
from aosp_plugin.daemon.report import (
    Counts,
    DeviceReport,
    Known,
    LeakReport,
    PodContainer,
    Report,
    ResourceReport,
    State,
)

COUNTS = Counts(total=0, free=0, allocated=0, unhealthy=0, leaked=0, unknown=0)
EMPTY = ResourceReport(
    name="a.io/x",
    registered=True,
    problem="",
    revision=1,
    truncated=0,
    counts=COUNTS,
    devices=(),
    leaks=(),
    leaks_known=True,
    leaks_problem="",
)
NODE = Report(
    version="1.2.3",
    node="node-7",
    started=1700000000.0,
    watching="inotify",
    allocations=Known(known=True, problem=""),
    resources=(),
)
LEAK = LeakReport("n1", 4711, "adbd --root", "c" * 64, "uid-1", 2000, 1700000000.5)
PHONE_9 = PodContainer("b", "phone-9", "android")
PHONE_10 = PodContainer("b", "phone-10", "android")


def device(device_id: str, state: State, *pods: PodContainer, reason: str = "", detail: str = "") -> DeviceReport:
    return DeviceReport(device_id, state, reason, detail, (), (device_id,), pods)


def text_of(max_rows: int | None = 20, *, known: bool = True, **fields: Any) -> list[str]:
    """Return the lines of one resource; ``known`` is whether the allocations are."""
    report = replace(NODE, allocations=Known(known, ""), resources=(replace(EMPTY, **fields),))
    return [line.text for line in summary(report, max_rows)][3 - known :]


@pytest.mark.parametrize(
    ("watching", "text"), [("inotify", "with inotify"), ("polling", "by polling (inotify is unavailable)")]
)
def test_first_line_describes_the_plugin(watching: str, text: str) -> None:
    (line,) = summary(replace(NODE, watching=watching))
    assert line.text.startswith("node-7: aosp-plugin 1.2.3, up since 2023-11-1")
    assert line.text.endswith(f", detects changes {text}")
    lines = summary(replace(NODE, allocations=Known(known=False, problem="no socket")))
    assert lines[1] == ("  Device allocations are unknown: no socket", False, "red")


def test_no_device_counts_as_allocated_or_free_while_allocations_are_unknown() -> None:
    lines = text_of(known=False, counts=replace(COUNTS, total=1, unhealthy=1))
    assert "  1 device: 0 healthy (allocation unknown), 1 unhealthy, 0 leaked" in lines


def test_problems_come_before_the_pods() -> None:
    """Pods are in natural order, consecutive devices are joined, and other states than allocated are shown."""
    lines = text_of(
        counts=replace(COUNTS, total=1234, free=1200, allocated=29, unhealthy=4, leaked=1),
        devices=(
            device("n0", State.ALLOCATED, PHONE_10),
            device("n1", State.LEAKED, PHONE_9, reason="missing"),
            device("n2", State.ALLOCATED, PHONE_9),
            device("n3", State.ALLOCATED, PHONE_9),
            device("n4", State.UNHEALTHY, PHONE_9, PHONE_10, reason="not-binder", detail="not-binder: is a disk"),
        ),
        leaks=(LEAK,),
    )
    assert [line for line in lines if "4711" not in line] == [
        "a.io/x: registered with the kubelet",
        "  1,234 devices: 29 allocated, 1,200 free, 4 unhealthy, 1 leaked",
        "",
        "  Leaked",
        "    DEVICE  PID   USER  STARTED              LOCATION   COMMAND",
        "",
        "  Unhealthy",
        "    DEVICE  REASON                 POD",
        "    n1      missing                b/phone-9",
        "    n4      not-binder: is a disk  b/phone-9, b/phone-10",
        "",
        "  Pods",
        "    POD         CONTAINER  DEVICES",
        "    b/phone-9   android    n1 (leaked), n2..3, n4 (unhealthy)",
        "    b/phone-10  android    n0, n4 (unhealthy)",
    ]


def test_unregistered_resource_shows_its_problem() -> None:
    truncated = "1 not advertised (the kubelet's 4 MiB message limit)"
    counts = replace(COUNTS, total=1, unknown=1)
    lines = text_of(known=False, registered=False, problem="no kubelet", counts=counts, truncated=1)
    assert lines == [
        "a.io/x: NOT registered with the kubelet",
        "  no kubelet",
        f"  1 device: 1 healthy (allocation unknown), 0 unhealthy, 0 leaked, {truncated}",
    ]


def test_leaks_are_not_counted_without_a_leak_scan() -> None:
    lines = text_of(leaks_known=False, leaks_problem="leak detection is off (leak_scan_interval: 0)")
    assert lines[1:] == [
        "  0 devices: 0 allocated, 0 free, 0 unhealthy, - leaked",
        "  leak detection is off (leak_scan_interval: 0)",
    ]


@pytest.mark.parametrize(
    ("leak", "location"),
    [
        (LEAK, "pod uid-1"),
        (replace(LEAK, pod_uid=""), "container cccccccccccc"),
        (replace(LEAK, pod_uid="", container=""), "-"),
    ],
)
def test_leak_row_shows_the_location_of_the_process(leak: LeakReport, location: str) -> None:
    row = text_of(leaks=(leak,))[-1]
    assert row.startswith("    n1      4711  2000  2023-11-1")
    assert row.split(maxsplit=5)[-1].split("  ")[0] == location
    assert row.endswith("  adbd --root")


def test_long_tables_are_cut_to_the_maximum_of_rows() -> None:
    devices = tuple(device(f"n{number}", State.UNHEALTHY, reason="missing") for number in range(1025))
    lines = text_of(devices=devices)
    assert (lines[-2].split(), lines[-1]) == (["n19", "missing"], "    ... and 1,005 more; use --all to show them")
    assert text_of(None, devices=devices)[-1].split() == ["n1024", "missing"]


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        ([], []),
        (["a1"], ["a1"]),
        (["a0", "a1", "a2", "b"], ["a0..2", "b"]),
        (["a1", "a3", "a4"], ["a1", "a3..4"]),
        (["a1", "b2"], ["a1", "b2"]),
        (["a01", "a02"], ["a01", "a02"]),
        (["a9", "a10", "x", "y"], ["a9..10", "x", "y"]),
        (["a1::0", "a1::1"], ["a1::0..1"]),
        (["7", "8"], ["7", "8"]),
    ],
)
def test_consecutive_names_are_joined(names: list[str], joined: list[str]) -> None:
    assert ranges(names) == joined
