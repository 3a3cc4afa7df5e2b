"""Which parameters belong to a request of a claim, and when a claim has ended."""

from typing import Any, cast

import msgspec
import pytest

from aosp_plugin.framework.dra.api_claims import ApiClaims, Claim, Configuration, device_ids, parameters_of, record_of
from aosp_plugin.framework.runtime import Runtime
from tests.claims import DRIVER, NODE, FakeSource, claim_object, parameters, place, reference
from tests.support import PATIENCE, Clock


@pytest.mark.parametrize(
    ("request_name", "expected"),
    [("main", ["all", "main"]), ("main/fast", ["all", "main", "fast"]), ("other", ["all"])],
)
def test_parameters_concern_all_requests_or_a_request_or_a_subrequest(request_name: str, expected: list[str]) -> None:
    config = [
        parameters("FromClass", "all"),
        parameters("FromClass", "main", "x", "main"),
        parameters("FromClaim", "fast", "main/fast"),
        {"source": "FromClass", "requests": []},
    ]
    found = parameters_of(request_name, msgspec.convert(config, tuple[Configuration, ...]), DRIVER)
    assert [each.content for each in found] == expected


def test_an_unknown_source_has_the_rights_of_a_claim() -> None:
    config = msgspec.convert([parameters("FromElsewhere", 1), parameters("FromClass", 2)], tuple[Configuration, ...])
    assert [(each.source, each.content) for each in parameters_of("x", config, DRIVER)] == [("class", 2), ("claim", 1)]


def test_a_claim_is_decoded_with_fields_that_are_unknown_or_missing() -> None:
    content = {**claim_object("a", {"phone": ["phone1"]}), "spec": {"devices": {"requests": [{"name": "phone"}]}}}
    content["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "u"}]
    assert msgspec.json.decode(msgspec.json.encode(content), type=Claim).results[0].device == "phone1"
    assert msgspec.json.decode(b'{"metadata": {"uid": "a"}}', type=Claim).results == ()


async def test_a_claim_has_ended_when_it_has_not_been_needed_for_long_enough() -> None:
    """The kubelet unprepares it before, unless it has lost its own record. A claim that is back begins again."""
    source, clock = FakeSource(), cast("Any", Clock())
    claims = ApiClaims(DRIVER, source.get_claim, Runtime(clock=clock))
    claim = await source.get_claim("default", source.add("a", "phone1").name)
    record = record_of(reference("a"), claim, DRIVER, device_ids(NODE, ["phone1"]))
    for later, is_there, ended in ((0, False, []), (9, False, []), (0, True, []), (9, False, []), (10, False, ["a"])):
        clock.now += later
        source.objects = {"claim-a": claim_object("a", {"phone": ["phone1"]})} if is_there else {}
        assert await claims.ask(record, PATIENCE)
        assert [*claims.ended] == ended


def test_devices_are_found_by_pool_and_name() -> None:
    ids = device_ids(NODE, ["aosp_binder7", "phone64"])
    assert ids == {(f"{NODE}/00000", "aosp-binder7"): "aosp_binder7", (f"{NODE}/00001", "phone64"): "phone64"}
    assert place("phone64")["pool"] == f"{NODE}/00001"
