"""The groups of items, in the order in which they run, and which of them CI runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.e2e.cluster import (
    items_binder,
    items_dra,
    items_dra_binder,
    items_dra_claims,
    items_dra_failures,
    items_dra_migration,
    items_dra_newest,
    items_dra_state,
    items_failures,
    items_fleet,
    items_install,
    items_kubectl_phones,
    items_kustomize,
    items_node_objects,
    items_phones,
    items_quickstart,
    items_reboot,
    items_rollout,
    items_upgrade,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.cluster.items import Item


@dataclass(frozen=True)
class Group:
    """Items that share a cluster; they leave it without a plugin and without phones."""

    name: str
    title: str
    items: Sequence[Item]
    machines: int = 1
    """The number of machines that the items need."""
    newest: bool = False
    """Whether the items need the newest Kubernetes too."""
    binder: bool = False
    """Whether the items need a machine with a real binder driver."""

    def select(self, text: str) -> list[Item]:
        """Return the items whose ``group.name`` contains ``text``."""
        return [item for item in self.items if text in f"{self.name}.{item.name}"]


GROUPS: Final[Sequence[Group]] = (
    Group("install", "the page that installs the plugin", [*items_install.item.all, *items_kustomize.item.all]),
    # Before `phones`, after which a resource that no plugin serves is left in the Node's status.
    Group("kubectl-phones", "kubectl phones, with problems that really exist", items_kubectl_phones.item.all),
    Group("phones", "phones that the scheduler places", items_phones.item.all),
    Group("dra", "the plugin as a DRA driver", items_dra.item.all),
    Group("dra-claims", "what claims can ask for", items_dra_claims.item.all),
    Group(
        "dra-failures",
        "failures while pods have claims",
        [*items_dra_failures.item.all, *items_dra_state.item.all],
    ),
    Group("node-objects", "Events, a taint and labels of the Node", items_node_objects.item.all),
    Group("rollout", "rolling updates of the plugin", items_rollout.item.all),
    Group("binder", "phones on a real binder driver, on a node in QEMU", items_binder.item.all, binder=True),
    Group("quickstart", "the page that leads to a first phone", items_quickstart.item.all, binder=True),
    Group("dra-binder", "claims on a real binder driver", items_dra_binder.item.all, binder=True),
    Group("reboot", "a node with systemd that reboots", items_reboot.item.all, binder=True),
    # Groups with several machines come last: later groups keep them.
    Group("failures", "each fault once, and several at once", items_failures.items, machines=3),
    Group("fleet", "what three nodes report of their phones", items_fleet.item.all, machines=3),
    # The last groups of all: the cluster is not downgraded.
    Group("upgrade", "an upgrade of Kubernetes under running phones", items_upgrade.item.all, newest=True),
    Group("dra-newest", "claims with the newest Kubernetes", items_dra_newest.item.all, newest=True),
    Group(
        "dra-migration",
        "from the device plugin to DRA and back",
        items_dra_migration.item.all,
        machines=2,
        newest=True,
    ),
)

ALWAYS: Final = ("install", "phones", "dra")
"""The groups of the core set that run on each commit."""
BY_ROTATION: Final = ("rollout", "failures")
"""The groups of which one joins the core set; the others need more machines or parts, or more than 10 minutes."""


def core(number: int) -> list[Group]:
    """Return the core set: the groups that always run, and the ``number``-th of those that rotate."""
    names = (*ALWAYS, BY_ROTATION[number % len(BY_ROTATION)])
    return [group for group in GROUPS if group.name in names]
