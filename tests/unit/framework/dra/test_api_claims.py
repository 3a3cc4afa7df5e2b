"""Which parameters belong to a request of a claim."""

from __future__ import annotations

import msgspec
import pytest

from aosp_plugin.framework.dra.api_claims import Claim, Configuration, device_ids, parameters_of
from tests.claims import DRIVER, NODE, claim_object, parameters, place


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


def test_devices_are_found_by_pool_and_name() -> None:
    ids = device_ids(NODE, ["aosp_binder7", "phone64"])
    assert ids == {(f"{NODE}/00000", "aosp-binder7"): "aosp_binder7", (f"{NODE}/00001", "phone64"): "phone64"}
    assert place("phone64")["pool"] == f"{NODE}/00001"
