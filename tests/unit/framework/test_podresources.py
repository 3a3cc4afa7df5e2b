"""The owners of devices in an answer of the podresources API."""

from aosp_plugin.framework.dra import slices
from aosp_plugin.framework.podresources_client import Owner, allocations_in
from tests.pod_resources import response


def test_owners_are_grouped_by_resource_and_device() -> None:
    """Other resources are ignored. A requested resource without allocations is present and empty.

    A device has several owners if it is replicated, in the order of the response, and one owner if the kubelet lists it
    once for each NUMA node.
    """
    containers = response(
        ("b", "p", "c", "x.io/one", ["n1", "n2"]),
        ("a", "q", "c", "x.io/one", ["n1"]),
        ("a", "q", "c", "x.io/other", ["n1"]),
        ("a", "r", "c", "y.io/y", ["n"]),
    )
    containers.pod_resources[0].containers[0].devices.add(resource_name="x.io/one", device_ids=["n1"])
    containers.pod_resources[0].containers.add(name="d").devices.add(resource_name="x.io/one", device_ids=["n1"])
    first, other = Owner("b", "p", "c"), Owner("a", "q", "c")
    assert allocations_in(containers, {"x.io/one": [], "x.io/other": [], "x.io/none": []}).owners == {
        "x.io/one": {"n1": (first, Owner("b", "p", "d"), other), "n2": (first,)},
        "x.io/other": {"n1": (other,)},
        "x.io/none": {},
    }


def test_devices_of_claims_have_owners_too() -> None:
    """The driver's name leads to the resource, and the name of a device to its ID. Other drivers are ignored."""
    containers = response(("games", "old", "android", "aosp.io/phone", ["phone1"]))
    container = containers.pod_resources.add(name="new", namespace="games").containers.add(name="android")
    claim = container.dynamic_resources.add(claim_name="phone", claim_namespace="games")
    for driver, device in (
        ("phone.aosp.io", "phone2"),
        ("binder.aosp.io", "aosp-binder7"),
        ("binder.aosp.io", slices.device_name("Binder-8")),
        ("binder.aosp.io", "unknown--0123abcd"),
        ("gpu.example.com", "phone3"),
    ):
        claim.claim_resources.add(driver_name=driver, pool_name="node/00000", device_name=device)
    allocations = allocations_in(containers, {"aosp.io/phone": [], "aosp.io/binder": ["Binder-8"]})
    old, new = Owner("games", "old", "android"), Owner("games", "new", "android")
    binder = ("aosp_binder7", "Binder-8", "unknown--0123abcd")
    assert allocations.owners == {
        "aosp.io/phone": {"phone1": (old,), "phone2": (new,)},
        "aosp.io/binder": dict.fromkeys(binder, (new,)),
    }
    assert allocations.by_plugin == {"aosp.io/phone": {"phone1"}, "aosp.io/binder": frozenset()}
    assert allocations.by_claim == {"aosp.io/phone": {"phone2"}, "aosp.io/binder": {*binder}}
