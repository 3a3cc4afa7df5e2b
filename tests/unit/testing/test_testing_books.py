"""The kubelet's books: what plugins told, and who holds what."""

from __future__ import annotations

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from aosp_plugin.testing.checkpoint import Checkpoint, Entry
from aosp_plugin.testing.resources import Books, Listing


def message(**devices: str) -> pb.ListAndWatchResponse:
    return pb.ListAndWatchResponse(devices=[pb.Device(ID=name, health=health) for name, health in devices.items()])


def entry(pod: str, container: str, resource: str, *ids: str) -> Entry:
    return Entry(pod, container, resource, {-1: ids}, b"")


def test_a_message_replaces_the_whole_list() -> None:
    """An id that is missing is gone, and the order is the message's."""
    listing = Listing()
    listing.replace(message(z="Healthy", a="Unhealthy"), 10, 1.0)
    assert list(listing.devices.items()) == [("z", "Healthy"), ("a", "Unhealthy")]
    assert listing.healthy == {"z"}
    listing.replace(message(b="Healthy"), 5, 2.0)
    assert listing.devices == {"b": "Healthy"}
    assert (listing.messages, listing.last_message_size, listing.last_message_at) == (2, 5, 2.0)


def test_an_id_that_comes_twice_counts_once() -> None:
    """Duplicates of one health collapse."""
    listing = Listing()
    listing.replace(pb.ListAndWatchResponse(devices=[pb.Device(ID="a", health="Healthy")] * 2), 0, 0)
    assert (listing.capacity, listing.healthy) == (1, {"a"})


def test_an_id_with_both_healths_is_in_both_sets() -> None:
    """As with the real kubelet: it can be allocated, whichever came last, and the capacity counts it twice."""
    listing = Listing()
    both = [pb.Device(ID="a", health="Healthy"), pb.Device(ID="a", health="Unhealthy")]
    listing.replace(pb.ListAndWatchResponse(devices=both), 0, 0)
    assert (listing.capacity, listing.healthy, listing.unhealthy) == (2, {"a"}, {"a"})
    listing.lose()
    assert (listing.capacity, listing.healthy) == (1, frozenset())


def test_only_the_exact_word_is_healthy() -> None:
    """Any other health is unhealthy, in whatever case or language."""
    listing = Listing()
    listing.replace(message(a="healthy", b="", c="Healthy", d="Sick"), 0, 0)
    assert listing.healthy == {"c"}


def test_topology_is_kept_where_there_is_one() -> None:
    """Also an empty one."""
    listing = Listing()
    nodes = pb.TopologyInfo(nodes=[pb.NUMANode(ID=0), pb.NUMANode(ID=1)])
    devices = [pb.Device(ID="a"), pb.Device(ID="b", topology=pb.TopologyInfo()), pb.Device(ID="c", topology=nodes)]
    listing.replace(pb.ListAndWatchResponse(devices=devices), 0, 0)
    assert listing.topology == {"b": (), "c": (0, 1)}


def test_an_empty_message_keeps_the_resource() -> None:
    """No devices are capacity 0 of a resource that is known."""
    books = Books(Checkpoint())
    books.listing("r/r").replace(message(), 0, 0)
    assert list(books.listed()) == ["r/r"]
    assert books.healthy("r/r") == set()


def test_loss_marks_all_unhealthy_and_forgetting_drops_them() -> None:
    """The capacity stays until the resource is forgotten; counters outlive both."""
    books = Books(Checkpoint())
    listing = books.listing("r/r")
    listing.replace(message(a="Healthy", b="Odd"), 7, 0)
    listing.lose()
    assert listing.devices == {"a": "Unhealthy", "b": "Unhealthy"}
    assert books.healthy("r/r") == set()
    listing.forget()
    assert listing.devices == {}
    assert books.healthy("r/r") is None
    assert listing.messages == 1


def test_a_resource_is_unknown_until_it_is_listed() -> None:
    """A plugin that has registered but sent nothing has no resource yet; one that was lost has."""
    books = Books(Checkpoint())
    assert not books.is_plugin_resource("r/r")
    listing = books.listing("r/r")
    assert not books.is_plugin_resource("r/r")
    listing.lose()
    assert books.is_plugin_resource("r/r")


def test_a_resource_that_is_in_use_stays_the_plugins() -> None:
    """Even when its plugin has been forgotten."""
    books = Books(Checkpoint(entries=[entry("u", "c", "r/r", "a")]))
    assert books.healthy("r/r") is None
    assert books.is_plugin_resource("r/r")


def test_books_are_restored_from_a_checkpoint() -> None:
    """Allocations are there again; resources are known, with no devices yet."""
    books = Books(Checkpoint([entry("u", "c", "r/1", "a", "b")], {"r/1": ["a", "b", "x"], "r/2": []}))
    assert books.in_use == {"r/1": {"a", "b"}}
    assert books.held("u", "c", "r/1") == ("a", "b")
    assert books.held("u", "c", "r/2") is None
    assert list(books.listed()) == ["r/1", "r/2"]
    assert books.healthy("r/1") == set()


def test_entries_of_a_container_are_only_its_own() -> None:
    """Neither another container's of the pod, nor another pod's of the same container name."""
    mine = entry("u", "c", "r/1", "a")
    books = Books(Checkpoint([mine, entry("u", "other", "r/1", "b"), entry("v", "c", "r/1", "x")]))
    assert books.of_container("u", "c") == [mine]


def test_release_frees_pods_that_ended() -> None:
    """Their devices are free again, and so are picks that came to nothing; nothing else changes."""
    books = Books(Checkpoint([entry("u", "c", "r/r", "a"), entry("v", "c", "r/r", "b")]))
    books.use("r/r", ("picked",))
    books.release(lambda pod: pod == "u")
    assert books.in_use == {"r/r": {"a"}}
    assert books.held("v", "c", "r/r") is None


def test_release_without_an_ended_pod_leaves_picks_in_use() -> None:
    """The kubelet recounts only when a pod has gone."""
    books = Books(Checkpoint([entry("u", "c", "r/r", "a")]))
    books.use("r/r", ("picked",))
    books.release({"u"}.__contains__)
    assert books.in_use == {"r/r": {"a", "picked"}}


def test_the_checkpoint_has_allocations_and_healthy_ids() -> None:
    """Unhealthy ids and resources that are not listed are left out."""
    books = Books(Checkpoint())
    books.listing("r/r").replace(message(b="Healthy", a="Healthy", c="Unhealthy"), 0, 0)
    books.listing("r/silent")
    mine = entry("u", "c", "r/r", "a")
    books.insert(mine)
    assert books.checkpoint() == Checkpoint((mine,), {"r/r": ["a", "b"]})
