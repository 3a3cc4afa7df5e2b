"""Random faults of API server, kubelet, Node and other clients: afterwards, the slices are what they should be.

The model is the definition of what should be: ``wanted_slices`` of the devices and the Node of that moment.
"""

import asyncio
import random
from collections.abc import Callable

import pytest

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.apiserver.client import ApiLimits
from aosp_plugin.framework.devices import Device
from aosp_plugin.framework.dra.slices import Identity, stored_slice, wanted_slices
from aosp_plugin.framework.timings import Timings
from kubelet_standin.apiserver import ApiServer, Cut, Garbage, Hang, Refuse, Slow, Throttle
from tests.slices import DRIVER, NODE, NODE_PATH, SLICES, Publishing, publishing

STEPS = 40
QUIET = 3
TIMINGS = Timings(slice_relist=2.0, watch_pause=(0.0, 0.1), longest_pause=0.4)
LIMITS = ApiLimits(request=0.5, watch=(1.0, 1.0), grace=0.5)
FAULTS = (
    Hang(),
    Slow(0.05),
    Cut(None),
    Cut(0.5),
    Garbage(),
    Throttle(None),
    Refuse(),
    Refuse(422, "Invalid", "invalid"),
)
VERBS = ("get", "list", "watch", "create", "update", "delete")


class World:
    """What happens to a publisher, at random."""

    def __init__(self, running: Publishing, rng: random.Random) -> None:
        self.running = running
        self.server = running.server
        self.rng = rng
        self.withheld = False

    @property
    def happenings(self) -> list[Callable[[], object]]:
        """All that may happen, what is usual more often."""
        return [
            *[self.devices_change] * 6,
            *[self.kubelet_starts] * 4,
            *[self.slice_is_deleted] * 2,
            *[self.slice_is_changed] * 3,
            *[self.fault] * 6,
            self.faults_end,
            self.foreign_slice,
            self.node_is_replaced,
            self.garbage_is_collected,
            self.withheld_or_not,
            self.gate_changes,
            self.server.compact,
            self.server.drop_connections,
            self.server.end_watches,
            self.running.publisher.check,
            self.running.inventory.republish,
            self.watches_are_silent,
        ]

    def devices_change(self) -> None:
        """Publish other devices."""
        numbers = [number for number in range(0, 200, 9) if self.rng.random() < 0.7]
        reasons = ["", "", "", "missing", "replaced"]
        self.running.inventory.publish([Device(f"phone{number}", self.rng.choice(reasons)) for number in numbers])

    def kubelet_starts(self) -> None:
        """Delete the slices of the node; GetInfo comes before, after or not."""
        if self.rng.random() < 0.3:
            self.running.publisher.check()
        self.running.wipe()

    def slice_is_deleted(self) -> None:
        """Delete one slice."""
        if names := [each["metadata"]["name"] for each in self.running.slices()]:
            self.server.objects.delete(protocol.object_path(SLICES, self.rng.choice(names)))

    def slice_is_changed(self) -> None:
        """Change one slice."""
        slices = self.running.slices()
        if not slices:
            return
        found = self.rng.choice(slices)
        devices = found["spec"].get("devices") or []
        match self.rng.randrange(4):
            case 0:
                found["spec"]["devices"] = devices[1:]
            case 1:
                found["spec"]["devices"] = [{"name": f"foreign-{self.rng.random():.6f}".replace(".", "-")}, *devices]
            case 2:
                found["metadata"]["ownerReferences"] = []
            case 3:
                found["spec"]["pool"]["generation"] += 1
        self.server.objects.update(protocol.object_path(SLICES, found["metadata"]["name"]), found)

    def foreign_slice(self) -> None:
        """Create a slice of the driver that it does not want."""
        name = f"obsolete-{self.rng.randrange(3)}"
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": [{"name": "foreign"}]}
        if self.server.objects.find(protocol.object_path(SLICES, name)) is None:
            self.server.objects.create(SLICES, {"metadata": {"name": name}, "spec": spec})

    def fault(self) -> None:
        """Let some of the next requests fail."""
        fault, verb = self.rng.choice(FAULTS), self.rng.choice(VERBS)
        self.server.faults.add(fault, verb=verb, times=self.rng.randint(1, 3))

    def faults_end(self) -> None:
        """End all faults."""
        self.server.faults.clear()

    def node_is_replaced(self) -> None:
        """Delete the Node, and create another one."""
        self.server.objects.delete(NODE_PATH)
        self.server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})

    def garbage_is_collected(self) -> None:
        """Delete slices of a Node that is gone."""
        self.server.objects.collect_garbage()

    def withheld_or_not(self) -> None:
        """Withhold all devices, or publish them again."""
        self.withheld = not self.withheld
        self.running.publisher.withhold("a test" if self.withheld else "")

    def gate_changes(self) -> None:
        """Switch the feature gate for taints, as an API server of another version behind the same address."""
        self.server.store.drop_fields = frozenset() if self.server.store.drop_fields else frozenset({"taints"})

    def watches_are_silent(self) -> None:
        """Let watches send nothing, or everything again."""
        self.server.faults.silence_watches(silent=self.rng.random() < 0.5)

    def as_it_should_be(self) -> bool:
        """Return whether the API server has exactly what is wanted, and would keep it so after garbage collection."""
        uid = self.server.objects.get(NODE_PATH)["metadata"]["uid"]
        devices = () if self.withheld else [*self.running.inventory.snapshot.devices.values()]
        identity = Identity(DRIVER, NODE, uid)
        found = {each["metadata"]["name"]: stored_slice(each) for each in self.running.slices()}
        return any(
            found.keys() == wanted.keys() and all(found[name].is_as(wanted[name]) for name in found)
            for taints in (True, False)
            for wanted in [wanted_slices(devices, lambda _: {}, identity, taints=taints).slices]
        )

    def never_free_while_unhealthy(self) -> bool:
        """Return whether devices that are unhealthy now are not offered without a taint."""
        unhealthy = {device.id for device in self.running.inventory.snapshot.unhealthy}
        return not unhealthy & set(self.running.free())


@pytest.mark.parametrize("seed", range(3))
async def test_after_random_faults_the_slices_are_as_they_should_be_and_nothing_is_written_any_more(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - repeatable
    async with ApiServer() as server, publishing(server, timings=TIMINGS, limits=LIMITS) as running:
        world = World(running, rng)
        world.devices_change()
        for _ in range(STEPS):
            match rng.randrange(40):
                case 0:
                    await server.restart()
                case 1:
                    await server.restart(keep_data=False)
                    server.objects.create(protocol.NODES, {"metadata": {"name": NODE}})
                case 2:
                    await server.stop()
                    await asyncio.sleep(rng.random() * 0.2)
                    await server.start()
                case _:
                    rng.choice(world.happenings)()
            await asyncio.sleep(rng.random() * 0.03)
        server.faults.clear()
        before = running.writes()
        running.publisher.check()
        await server.wait_for(lambda _: world.as_it_should_be() and world.never_free_while_unhealthy())
        await running.confirmed()
        # A write for each slice, once more for a failed one, and deletions of what was never wanted.
        assert running.writes() - before <= 4 * len(running.slices()) + 12, server.describe()
        await at_rest(running)
        assert world.as_it_should_be()


async def at_rest(running: Publishing) -> None:
    """Check that soon, looking at everything leads to no more writes."""
    quiet = 0
    for _ in range(12):
        writes = running.writes()
        await running.compared()
        await running.confirmed()
        quiet = quiet + 1 if running.writes() == writes else 0
        if quiet == QUIET:
            return
    pytest.fail(f"the publisher goes on writing; {running.server.describe()}")
