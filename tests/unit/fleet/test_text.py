"""The text that ``kubectl phones`` prints."""

from __future__ import annotations

from typing import Any

from aosp_plugin.cli.fleet.fleet import Selection, fleet
from aosp_plugin.cli.fleet.text import lines
from tests.unit.fleet.clusters import NOW, answers, cluster, device, node, plugin_pod, pod, resource

LONG = "phone-host-{}.rack-12.region-7.example.com"


def text_of(given: Any, *, wide: bool = False, width: int | None = None, **selected: Any) -> list[str]:
    """Return the lines of a cluster."""
    return [line.text for line in lines(fleet(given, Selection(**selected)), wide=wide, width=width)]


def broken() -> Any:
    """Return a cluster with a long name in each column, and a problem of each table."""
    names = [LONG.format(number) for number in (1, 2)]
    nodes = (node(names[0]), node(names[1], allocatable=0))
    failing = pod("redroid-7f9c6d5b8d-x2kqp", names[0], namespace="customer-with-a-long-name", ready=False)
    waits = (("CrashLoopBackOff", "back-off 5m0s restarting failed container=android pod=redroid"),)
    pods = (pod("redroid-1", names[0]), type(failing)(**{**fields(failing), "waiting": waits}))
    return cluster(nodes=nodes, pods=pods, plugin_pods=(plugin_pod(names[0]),))


def fields(struct: Any) -> dict[str, Any]:
    """Return the fields of a struct."""
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def test_problems_come_before_nodes_and_phones() -> None:
    text = text_of(broken())
    assert text[0] == "8 phones on 2 nodes: 4 allocatable, 2 used, 0 unhealthy, 0 waiting"
    titles = [line.split() for line in text if line.isupper() or line.startswith(("NODE ", "NAMESPACE"))]
    assert titles == [
        ["NODE", "PROBLEM", "AGE", "DETAIL"],
        ["NODE", "PHONES", "ALLOCATABLE", "USED", "UNHEALTHY", "PLUGIN", "AGE"],
        ["NAMESPACE", "POD", "NODE", "PHONE", "STATE", "AGE", "REASON"],
    ]
    first = text[text.index(next(line for line in text if line.startswith("NAMESPACE"))) + 1]
    assert first.split()[1] == "redroid-7f9c6d5b8d-x2kqp"


def test_columns_are_aligned_and_whole_without_a_width() -> None:
    text = text_of(broken())
    (title,) = (line for line in text if line.startswith("NAMESPACE"))
    rows = text[text.index(title) + 1 :]
    for column in ("POD", "NODE", "STATE"):
        at = title.index(column)
        assert all(line[at - 2 : at] == "  " and line[at] != " " for line in rows), column
    assert not any("…" in line for line in text)
    assert any("back-off 5m0s restarting failed container=android pod=redroid" in line for line in text)


def test_tables_fit_80_columns_and_the_ends_of_names_remain() -> None:
    text = text_of(broken(), width=80)
    assert max(map(len, text)) <= 80
    assert any("…" in line for line in text)
    (row,) = (line for line in text if "CrashLoop" in line)
    assert row.split()[1].endswith("x2kqp")
    assert "redroid-1" in "\n".join(text)


def test_a_terminal_that_is_too_narrow_keeps_the_least_widths() -> None:
    assert max(map(len, text_of(broken(), width=20))) > 20


def test_phones_of_pods_are_counted_if_nodes_cannot_be_read() -> None:
    text = text_of(cluster(nodes=None, pods=(pod(phones=3),)))
    assert text[0] == "3 phones of pods; the nodes are unknown"


def test_wide_has_more_columns_and_the_time_of_the_state() -> None:
    text = text_of(broken(), wide=True)
    (nodes,) = (line for line in text if line.startswith("NODE") and "PHONES" in line)
    (phones,) = (line for line in text if line.startswith("NAMESPACE"))
    assert nodes.split()[7:] == ["RESOURCE", "API", "VERSION", "SOURCE", "PLUGIN", "POD"]
    assert phones.split()[-3:] == ["RESOURCE", "SINCE", "REASON"]


def test_several_resources_have_a_column() -> None:
    both = (node(), node("n2", resource="aosp.io/binder"))
    text = text_of(cluster(nodes=both, plugin_pods=(plugin_pod(), plugin_pod("n2"))))
    assert any(line.startswith("NODE") and "RESOURCE" in line for line in text)


def test_free_devices_are_counted_but_not_listed() -> None:
    devices = (device("phone0"), device("phone1", "unhealthy", reason="missing", since=NOW - 70))
    reported = resource(3, unhealthy={"missing": 1}, devices=devices)
    text = text_of(cluster(nodes=(node(allocatable=3),), answers=answers(reported)))
    assert text[-1].split() == ["-", "-", "n1", "phone1", "unhealthy", "70s", "missing"]


def test_a_pod_with_several_phones_has_one_row() -> None:
    devices = tuple(device(f"phone{number}", "allocated", pods=(("a", "p1"),)) for number in (1, 2, 3))
    known = text_of(cluster(pods=(pod(phones=3),), answers=answers(resource(devices=devices))))
    assert known[-1].split()[3] == "phone1..3"
    assert text_of(cluster(pods=(pod(phones=3),)))[-1].split()[3:5] == ["3", "phones"]
    assert text_of(cluster(pods=(pod(phones=1),)))[-1].split()[3] == "-"


def test_unknown_use_is_a_dash_and_a_cluster_without_problems_says_it() -> None:
    text = text_of(cluster(pods=(pod(),)), namespace="a")
    assert text[0] == "4 phones on 1 nodes: 4 allocatable, unknown use, 0 unhealthy, 0 waiting"
    assert text[1] == "No node has a problem."
    assert text[4].split()[3] == "-"


def test_a_reason_is_one_line_without_control_characters() -> None:
    message = "runc create failed:\nstderr:\tno GPU \x1b[2J\N{RIGHT-TO-LEFT OVERRIDE}"
    failing = pod(ready=False, phase="Pending", waiting=(("RunContainerError", message),))
    text = text_of(cluster(pods=(failing,)))
    assert text[-1].endswith("RunContainerError: runc create failed: stderr: no GPU \ufffd[2J\ufffd")
    assert all(line.isprintable() for line in text)
