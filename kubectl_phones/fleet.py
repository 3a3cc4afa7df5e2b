"""Makes the document from what was read of a cluster. Everything here is pure."""

from collections.abc import Sequence

from kubectl_phones.devices import devices, resources
from kubectl_phones.gather import Cluster, Selection
from kubectl_phones.problems import problems as all_problems
from kubectl_phones.report import KINDS, Fleet, NodeRow, PhoneRow, Problem, Totals
from kubectl_phones.rows import node_views, phone_rows

_NOTHING = "no node has phones, and there is no pod of the plugin; --resource names resources outside aosp.io"
_ORDER = {kind: number for number, kind in enumerate(KINDS)}


def fleet(cluster: Cluster, selection: Selection = Selection()) -> Fleet:  # noqa: B008 - it is immutable
    """Return the selected rows and problems, the most important first."""
    names = resources(cluster, selection.resources)
    known = devices(cluster, names)
    phones = list(phone_rows(cluster, known, names, subset=selection.subset))
    views = list(node_views(cluster, known, phones, names, subset=selection.subset))
    problems = list(all_problems(cluster, views, known))
    nodes = [row for view in views for row in view.rows]
    chosen = selection.nodes or {row.node for row in phones}  # of some pods, their nodes
    if selection.nodes or selection.subset:
        phones = [row for row in phones if row.node in chosen]
        nodes = [row for row in nodes if row.node in chosen]
        problems = [problem for problem in problems if problem.node in chosen]
    if not nodes and not phones and cluster.nodes is not None and not selection.subset:
        problems.append(Problem("no-phones", "", "", _NOTHING, None))
    problems.sort(key=lambda problem: (_ORDER.get(problem.kind, len(KINDS)), problem.node, problem.resource))
    troubled = {problem.node for problem in problems}
    totals = _totals(nodes, phones)
    if selection.unhealthy:
        phones = [row for row in phones if row.problem]
        nodes = [row for row in nodes if row.node in troubled]
    phones.sort(key=lambda row: (not row.problem, row.namespace, row.node, row.pod, row.devices, row.resource))
    nodes.sort(key=lambda row: (row.node not in troubled, row.node, row.resource))
    complete = None not in (cluster.nodes, cluster.pods, cluster.plugin_pods)
    return Fleet(cluster.time, totals, tuple(problems), tuple(nodes), tuple(phones), cluster.missing, complete=complete)


def _totals(nodes: Sequence[NodeRow], phones: Sequence[PhoneRow]) -> Totals:
    used = [row.used for row in nodes if row.used is not None]
    return Totals(
        nodes=len({row.node for row in nodes}),
        phones=sum(row.phones for row in nodes),
        allocatable=sum(row.allocatable for row in nodes),
        used=sum(used) if len(used) == len(nodes) else None,
        unhealthy=sum(row.unhealthy for row in nodes),
        waiting=sum(row.count for row in phones if row.state == "waiting"),
    )


def has_problems(found: Fleet) -> bool:
    """Return whether anything is wrong."""
    return bool(found.problems) or any(row.problem for row in found.phones)
