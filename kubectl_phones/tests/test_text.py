"""The text that ``kubectl phones`` prints."""

from typing import Any

from kubectl_phones.fleet import fleet
from kubectl_phones.gather import Selection
from kubectl_phones.tests.clusters import claim, cluster, node, plugin_pod, pod, slice_of, time
from kubectl_phones.text import lines

MESSAGE = "back-off 5m0s restarting failed container=android pod=redroid"
CRASHING = {"ready": False, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": MESSAGE}}}


def text_of(given: Any, **selected: Any) -> list[str]:
    """Return the lines of a cluster."""
    return list(lines(fleet(given, Selection(**selected))))


def broken() -> Any:
    """Return a cluster with a problem in each table."""
    failing = pod("redroid-x2kqp", status={"conditions": [], "containerStatuses": [CRASHING]})
    nodes = [node(), node("host-2.rack-7.example.com", allocatable=0)]
    return cluster(nodes=nodes, pods=[pod("redroid-1"), failing])


def test_problems_come_before_nodes_and_phones() -> None:
    text = text_of(broken())
    assert text[0] == "8 phones on 2 nodes: 4 allocatable, 2 used, 0 unhealthy, 0 waiting"
    titles = [line.split() for line in text if line.startswith(("NODE ", "NAMESPACE"))]
    assert titles == [
        ["NODE", "PROBLEM", "AGE", "DETAIL"],
        ["NODE", "PHONES", "ALLOCATABLE", "USED", "UNHEALTHY", "PLUGIN", "AGE", "RESOURCE"],
        ["NAMESPACE", "POD", "NODE", "PHONE", "STATE", "AGE", "RESOURCE", "REASON"],
    ]
    first = text[text.index(next(line for line in text if line.startswith("NAMESPACE"))) + 1]
    assert first.split()[1] == "redroid-x2kqp"


def test_columns_are_aligned_and_whole() -> None:
    text = text_of(broken())
    (title,) = (line for line in text if line.startswith("NAMESPACE"))
    rows = text[text.index(title) + 1 :]
    for column in ("POD", "NODE", "STATE"):
        at = title.index(column)
        assert all(line[at - 2 : at] == "  " and line[at] != " " for line in rows), column
    assert any(line.endswith(MESSAGE) for line in rows)


def test_phones_of_pods_are_counted_if_nodes_cannot_be_read() -> None:
    text = text_of(cluster(nodes=None, pods=[pod(phones=3)]))
    assert text[0] == "3 phones of pods; the nodes are unknown"


def test_a_pod_with_several_phones_has_one_row() -> None:
    assert text_of(cluster(pods=[pod(phones=3)]))[-1].split()[3:5] == ["3", "phones"]
    assert text_of(cluster(pods=[pod(phones=1)]))[-1].split()[3] == "-"
    claims = [claim(f"c{number}", f"phone{number}", "p1") for number in (1, 2)]
    known = cluster(nodes=[node(capacity=None)], slices=[slice_of("phone1", "phone2")], pods=[pod()], claims=claims)
    assert text_of(known)[-1].split()[3] == "phone1,phone2"


def test_unknown_use_is_a_dash_and_a_cluster_without_problems_says_it() -> None:
    text = text_of(cluster(pods=[pod()]), namespace="a")
    assert text[0] == "4 phones on 1 nodes: 4 allocatable, unknown use, 0 unhealthy, 0 waiting"
    assert text[1] == "No node has a problem."
    assert text[4].split()[3] == "-"


def test_ages_are_those_of_kubectl() -> None:
    ages = {119: "119s", 120: "2m", 7200: "2h", 3 * 86400: "3d", 3 * 365 * 86400: "3y"}
    for seconds, shown in ages.items():
        created = {"creationTimestamp": time(seconds)}
        assert text_of(cluster(pods=[pod(metadata=created)], plugin_pods=[plugin_pod()]))[-1].split()[5] == shown


def test_a_reason_is_one_line_without_control_characters() -> None:
    message = "runc create failed:\nstderr:\tno GPU \x1b[2J\N{RIGHT-TO-LEFT OVERRIDE}"
    failing = {"ready": False, "state": {"waiting": {"reason": "RunContainerError", "message": message}}}
    text = text_of(cluster(pods=[pod(status={"phase": "Pending", "conditions": [], "containerStatuses": [failing]})]))
    assert text[-1].endswith("RunContainerError: runc create failed: stderr: no GPU \ufffd[2J\ufffd")
    assert all(line.isprintable() for line in text)
