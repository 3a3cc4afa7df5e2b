"""What happens to the node, on purpose. Each fault lasts, or is over at once; none is the plugin's."""

import contextlib
import stat
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.containers import CDI_DIRECTORIES
from tests.simulation.kubelet import DIRECTORY, SOCKET
from tests.simulation.settings import MOST, Pool
from tests.simulation.system import LOADER

with LOADER.importing():
    from aosp_plugin.config.values import Api

if TYPE_CHECKING:
    from tests.simulation.world import World

Undo = Callable[[], None]
FAULTS: dict[str, Callable[["World"], Undo | None]] = {}
"""By name. A fault that lasts returns what ends it."""


def fault(function: Callable[["World"], Undo | None]) -> Callable[["World"], Undo | None]:
    """Register a fault."""
    FAULTS[function.__name__] = function
    return function


def _lasting(owner: object, name: str, *, value: float = True) -> Undo:
    """Set an attribute, and return what sets it to zero again."""
    setattr(owner, name, value)
    return partial(setattr, owner, name, type(value)())


# -- the kubelet


@fault
def kubelet_restarts(world: "World") -> None:
    """The kubelet ends and starts again soon."""
    world.stop_kubelet()
    world.host.later(world.rng.uniform(0.0, 3.0), world.start_kubelet)


@fault
def kubelet_is_away(world: "World") -> Undo:
    """The kubelet ends, and stays away for a while."""
    world.stop_kubelet()
    return world.start_kubelet


@fault
def node_is_created_again(world: "World") -> None:
    """The Node is deleted, and the kubelet starts again and creates it with its startup taint."""
    world.node.create_again()


@fault
def streams_end(world: "World") -> None:
    """The kubelet's streams end."""
    world.kubelet.drop_streams()


@fault
def kubelet_loses_devices(world: "World") -> None:
    """The kubelet marks all devices unhealthy, although the streams are open."""
    world.kubelet.lose_devices()


@fault
def register_is_slow(world: "World") -> Undo:
    """Register takes seconds."""
    world.kubelet.faults.slow_register = world.rng.uniform(1.0, 25.0)
    return world.kubelet.faults.release_register


@fault
def register_fails(world: "World") -> Undo:
    """The kubelet refuses registrations."""
    world.kubelet.faults.refuse_register = "registration failed"
    return partial(setattr, world.kubelet.faults, "refuse_register", None)


@fault
def podresources_is_slow(world: "World") -> Undo:
    """The kubelet answers podresources late, or too late."""
    return _lasting(world.kubelet, "answers_late", value=world.rng.uniform(0.5, 5.0))


@fault
def podresources_is_wrong(world: "World") -> Undo:
    """The kubelet answers podresources without any device."""
    return _lasting(world.kubelet, "answers_wrongly")


@fault
def kubelet_directory_is_replaced(world: "World") -> None:
    """The directory of plugins is removed and created again; what a kubelet's checkpoint needs is there again."""
    files = world.host.files
    world.stop_kubelet()
    with contextlib.suppress(OSError):
        kept = {name: inode for name, inode in files.lookup(DIRECTORY).entries.items() if inode.is_directory}
        files.remove_tree(DIRECTORY)
        world.kept_directories |= kept
    world.host.later(world.rng.uniform(0.0, 2.0), world.start_kubelet)


@fault
def plugin_socket_is_removed(world: "World") -> None:
    """Another program removes the plugin's sockets."""
    with contextlib.suppress(OSError):
        for name, inode in [*world.host.files.lookup(DIRECTORY).entries.items()]:
            if stat.S_ISSOCK(inode.mode) and f"{DIRECTORY}/{name}" != SOCKET:
                world.host.files.remove(f"{DIRECTORY}/{name}")


# -- the host


@fault
def host_hangs(world: "World") -> Undo:
    """Calls on the host do not return."""
    return _lasting(world.host, "hanging")


@fault
def host_is_slow(world: "World") -> Undo:
    """Calls on the host take long."""
    return _lasting(world.host, "slow", value=world.rng.uniform(0.01, 1.0))


@fault
def descriptors_run_out(world: "World") -> Undo:
    """No file can be opened."""
    return _lasting(world.host, "no_descriptors")


@fault
def disk_is_full(world: "World") -> Undo:
    """Nothing can be written."""
    return _lasting(world.host, "no_space")


@fault
def mounts_run_out(world: "World") -> Undo:
    """The limit of mounts is reached."""
    return _lasting(world.host, "no_mounts")


@fault
def binderfs_is_full(world: "World") -> Undo:
    """No binder device can be created."""
    return _lasting(world.host, "no_devices")


@fault
def events_are_lost(world: "World") -> Undo:
    """No file or mount event arrives."""
    return _lasting(world.host, "lost_events")


@fault
def events_are_late(world: "World") -> Undo:
    """File and mount events arrive late, and in another order."""
    return _lasting(world.host, "late_events", value=world.rng.uniform(0.01, 2.0))


@fault
def events_overflow(world: "World") -> None:
    """The queue of file events is full for a while: its subscriber learns only that, when it reads the queue."""
    world.host.overflows_until = world.host.monotonic() + world.rng.uniform(0.1, 2.0)


@fault
def clock_jumps(world: "World") -> None:
    """The wall clock is set."""
    world.host.clock_offset += world.rng.choice((-86400.0, -60.0, -0.5, 0.5, 3600.0))


# -- devices and phones


@fault
def device_is_removed(world: "World") -> None:
    """A found device that no container has is removed; somebody creates it again."""
    world.lose_device()


@fault
def binderfs_is_mounted_again(world: "World") -> None:
    """The binderfs of the found devices is unmounted, and another one mounted, with the same names."""
    world.mount_devices_again()


@fault
def phone_is_unmounted(world: "World") -> None:
    """The binderfs of a phone is unmounted on the host."""
    world.unmount_phone()


@fault
def foreign_mount_covers_a_phone(world: "World") -> Undo | None:
    """Another file system is mounted over a phone."""
    return world.cover_phone()


# -- the API server


@fault
def api_server_is_away(world: "World") -> Undo:
    """The API server does not answer, and watches break."""
    world.api.end_watches()
    return _lasting(world.api, "is_away")


@fault
def api_server_is_slow(world: "World") -> Undo:
    """The API server answers late, or too late."""
    world.api.slow_down(world.rng.uniform(0.1, 20.0))
    return lambda: world.api.slow_down(0.0)


@fault
def api_server_refuses(world: "World") -> Undo:
    """The API server refuses half of the requests: a token was rotated, others change the same, it limits or fails."""
    return _lasting(world.api, "refuses", value=world.rng.choice((401, 409, 429, 500)))


@fault
def watches_end(world: "World") -> None:
    """Watches end, some of them with 410."""
    world.api.end_watches()


@fault
def watches_have_a_gap(world: "World") -> Undo:
    """Watches are broken without an end, which comes later."""
    world.api.loses_events = True

    def end() -> None:
        world.api.loses_events = False
        world.api.end_watches()

    return end


@fault
def slice_is_deleted(world: "World") -> None:
    """Another client deletes a ResourceSlice."""
    world.damage_slice(delete=True)


@fault
def slice_is_changed(world: "World") -> None:
    """Another client changes a ResourceSlice."""
    world.damage_slice(delete=False)


@fault
def spec_is_removed(world: "World") -> None:
    """Another program removes the CDI spec of a claim."""
    world.remove_specs()


@fault
def cdi_directory_is_replaced(world: "World") -> None:
    """Another program removes the CDI directory with all specs, and creates it again."""
    world.remove_specs(directory=True)


@fault
def record_is_damaged(world: "World") -> None:
    """Another program truncates the record of a claim, but not while it alone tells where the claim's spec is."""
    if {*world.claims.recorded_directories(), *(directory for directory, _ in world.claims.specs())} <= {
        world.settings.cdi
    }:
        world.damage_record()


@fault
def claimed_phone_is_unmounted(world: "World") -> None:
    """The binderfs of a claimed phone is unmounted on the host."""
    world.unmount_phone(of_claims=True)


# -- pods


@fault
def claim_arrives(world: "World") -> None:
    """A pod with a claim arrives."""
    world.claims.add()


@fault
def claim_ends(world: "World") -> None:
    """A pod with a claim ends."""
    world.end_claim()


@fault
def container_with_a_claim_restarts(world: "World") -> None:
    """A container with a claim restarts."""
    world.restart_claim()


@fault
def pod_starts(world: "World") -> None:
    """A pod arrives."""
    world.start_pod()


@fault
def pod_ends(world: "World") -> None:
    """A pod ends."""
    world.end_pod()


@fault
def container_restarts(world: "World") -> None:
    """A container crashes, and starts again."""
    world.restart_container()


# -- the plugin


@fault
def plugin_is_killed(world: "World") -> None:
    """The plugin is killed now, and starts again."""
    world.process.kill()


@fault
def plugin_is_killed_at_a_call(world: "World") -> None:
    """The plugin is killed between two calls on the host, soon."""
    process = world.process
    process.killed_at_call = process.calls + 1 + int(world.rng.expovariate(1 / 20))


@fault
def plugin_is_killed_at_an_await(world: "World") -> None:
    """The plugin is killed before one of its tasks goes on after an await, soon."""
    world.kill_plugin_at_await()


@fault
def plugin_is_stopped(world: "World") -> None:
    """The plugin gets SIGTERM, and starts again."""
    world.process.stop()


@fault
def plugin_reloads(world: "World") -> None:
    """The plugin gets SIGHUP, half of the time with another configuration."""
    world.reload_plugin()


@fault
def provisioner_is_killed(world: "World") -> None:
    """The provisioner is killed now, and starts again."""
    world.provisioner.process.kill()


@fault
def provisioner_is_killed_at_a_call(world: "World") -> None:
    """The provisioner is killed between two calls on the host, soon."""
    process = world.provisioner.process
    process.killed_at_call = process.calls + 1 + int(world.rng.expovariate(1 / 20))


@fault
def provisioner_hangs(world: "World") -> Undo:
    """The provisioner performs requests after the plugin has given up."""
    world.provisioner.hang()
    return world.provisioner.go_on


@fault
def second_plugin(world: "World") -> Undo:
    """Another plugin of the same configuration runs beside, as in a rolling update."""
    return world.start_second_plugin()


# -- the operator


def _toggle(first: str, second: str) -> Callable[[Pool], None]:
    """Return what exchanges two values of a resource."""

    def changed(pool: Pool) -> None:
        one, other = getattr(pool, first), getattr(pool, second)
        setattr(pool, first, other)
        setattr(pool, second, one)

    return changed


@fault
def count_is_lowered(world: "World") -> None:
    """The operator lowers the number of phones of a resource."""

    def changed(pool: Pool) -> None:
        pool.count = world.rng.randrange(1, pool.count)

    world.reconfigure(lambda pool: bool(pool.directory) and pool.count > 1, changed)


@fault
def count_is_raised(world: "World") -> None:
    """The operator raises the number of phones of a resource."""

    def changed(pool: Pool) -> None:
        pool.count = world.rng.randint(pool.count + 1, MOST)

    world.reconfigure(lambda pool: bool(pool.directory) and pool.count < MOST, changed)


@fault
def per_device_is_lowered(world: "World") -> None:
    """The operator limits how many phones have the same spread device, or lowers that limit."""

    def changed(pool: Pool) -> None:
        pool.per_device = 1 if pool.per_device else 2

    world.reconfigure(lambda pool: pool.spreads and pool.per_device != 1, changed)


@fault
def per_device_is_raised(world: "World") -> None:
    """The operator raises that limit, or removes it."""

    def changed(pool: Pool) -> None:
        pool.per_device = 2 if pool.per_device == 1 else None

    world.reconfigure(lambda pool: pool.spreads and pool.per_device is not None, changed)


@fault
def resource_is_renamed(world: "World") -> None:
    """The operator renames a resource of the device plugin API."""
    world.reconfigure(lambda pool: pool.api is Api.DEVICE_PLUGIN, _toggle("name", "other_name"))


@fault
def driver_is_renamed(world: "World") -> None:
    """The operator renames a DRA driver."""
    world.reconfigure(lambda pool: pool.api is Api.DRA, _toggle("name", "other_name"))


@fault
def cdi_directory_moves(world: "World") -> None:
    """The operator changes the directory of CDI specs."""
    if not world.claims.damaged_records():
        world.settings.cdi = next(each for each in CDI_DIRECTORIES if each != world.settings.cdi)
        world.apply()


@fault
def phones_move(world: "World") -> None:
    """The operator changes the directory of the phones of a resource."""
    world.reconfigure(lambda pool: bool(pool.directory), _toggle("directory", "other_directory"))


@fault
def api_changes(world: "World") -> None:
    """The operator changes the API of a resource."""

    def changed(pool: Pool) -> None:
        pool.api = Api.DRA if pool.api is Api.DEVICE_PLUGIN else Api.DEVICE_PLUGIN

    world.reconfigure(lambda _: True, changed)
