"""The opaque parameters of claims and classes: errors name where they are, the key, and what is allowed."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pytest

from aosp_plugin.backend.parameters import (
    API_VERSION,
    KIND,
    PARAMETER_KEYS,
    Parameters,
    effective_parameters,
    require_free,
)
from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.errors import InvalidRequestError
from hack import docs

VISIBLE = "BINDER_VISIBLE_DEVICES"


def of_class(source: Literal["class", "claim"] = "class", **content: Any) -> ClaimParameters:
    return ClaimParameters(source, {"apiVersion": API_VERSION, "kind": KIND, **content})


def of_claim(**content: Any) -> ClaimParameters:
    return of_class("claim", **content)


def error_of(*parameters: ClaimParameters) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        effective_parameters(parameters, [VISIBLE])
    return str(caught.value)


def test_without_parameters_the_configuration_counts() -> None:
    assert effective_parameters([]) == Parameters()
    assert effective_parameters([of_class(), of_claim()]) == Parameters()


def test_later_parameters_take_precedence_key_by_key() -> None:
    """Those of a claim over those of its class; of two claims, the later one."""
    environment = {"A": "class", "B": "class"}
    devices, allowed = ["/dev/kvm", "/dev/fuse"], ["/dev/snd/*", "/dev/fuse"]
    by_class = of_class(containerPaths=["/dev/a"], environment=environment, devices=devices, allowedDevices=allowed)
    by_claim = of_claim(environment={"B": "claim", "C": "claim"}, devices=["/dev/snd/timer", "/dev/fuse"])
    merged = effective_parameters([by_class, by_claim])
    assert merged.container_paths == ("/dev/a",)
    assert merged.environment == {"A": "class", "B": "claim", "C": "claim"}
    assert merged.devices == ("/dev/kvm", "/dev/fuse", "/dev/snd/timer")
    assert merged.sources["containerPaths"].startswith("parameters of the DeviceClass")
    assert merged.sources["devices"] == "parameters of the ResourceClaim: devices"
    first, second = of_claim(containerPaths=["/dev/a"]), of_claim(containerPaths=[])
    assert effective_parameters([first, second]).container_paths == ()
    assert effective_parameters([second, first]).container_paths == ("/dev/a",)


LONG_PATH = "/dev/" + 251 * "x"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"containerPaths": "/dev/a"}, "containerPaths: '/dev/a' is not allowed; allowed: a list of up to 64"),
    *(
        ({"containerPaths": paths}, "is not allowed; allowed: a list of up to 64 absolute paths")
        for paths in (["binder"], ["/dev/../etc"], ["/dev/x\n"], ["/x"] * 2, [LONG_PATH], [f"/{n}" for n in range(65)])
    ),
    ({"containerPaths": ["/proc/x"]}, "containerPaths: the container path '/proc/x' is not allowed: the container "),
    *(
        ({"environment": variables}, "is not allowed; allowed: a mapping of up to 64 names")
        for variables in (["A=1"], {"A": 1}, {"A B": "1"}, {"": "1"}, {"A": "1\n2"}, {"A": "x" * 4097})
    ),
    ({"environment": {VISIBLE: "all"}}, f"environment: the variable {VISIBLE} is not allowed: the plugin sets it"),
    ({"devices": ["/dev/snd/*"]}, "devices: ['/dev/snd/*'] is not allowed; allowed: a list of up to 64 absolute "),
    ({"devices": ["/dev/null"]}, "devices: the container path '/dev/null' is not allowed: the container runtime or"),
    ({"allowedDevices": ["/dev/**"]}, "allowedDevices: ['/dev/**'] is not allowed; allowed: a list of up to 64"),
    ({"container_paths": []}, "container_paths: unknown key; did you mean containerPaths?"),
]


def test_bad_value_is_refused() -> None:
    for content, error in BAD:
        text = error_of(of_class(**content))
        assert text.startswith("parameters of the DeviceClass: ")
        assert error in text


def test_limits_hold_for_all_entries_together() -> None:
    """A class and a claim may have 32 entries each."""
    variables = [
        of_claim(environment={f"A{entry}_{number}": "" for number in range(64)}, containerPaths=["/dev/a"])
        for entry in range(32)
    ]
    text = "in all, with those of the class and of other entries; allowed: up to 64"
    assert error_of(*variables) == f"parameters of the ResourceClaim: environment: 128 {text}"
    assert error_of(*[of_class(devices=[f"/dev/{entry}/{number}" for number in range(33)]) for entry in range(2)]) == (
        f"parameters of the DeviceClass: devices: 66 {text}"
    )
    assert len(effective_parameters([variables[0]] * 32).environment) == 64


def test_parameters_of_another_version_or_kind_are_refused() -> None:
    for content, error in (
        ("text", "'text' is not allowed; allowed: a mapping with kind: PhoneParameters"),
        (None, "null is not allowed; allowed: a mapping with kind: PhoneParameters"),
        ({}, "apiVersion: required key is missing; allowed: phone.aosp.io/v1alpha1"),
        ({"apiVersion": "phone.aosp.io/v1"}, "apiVersion: 'phone.aosp.io/v1' is not supported; allowed: "),
        ({"apiVersion": API_VERSION, "kind": "GpuConfig"}, "kind: 'GpuConfig' is not supported; allowed: PhoneParame"),
    ):
        text = error_of(of_class(), ClaimParameters("claim", content))
        assert text.startswith(f"parameters of the ResourceClaim: {error}")


def test_devices_of_a_claim_must_be_allowed_by_the_class() -> None:
    claim = of_claim(devices=["/dev/snd/timer"])
    place = "parameters of the ResourceClaim: devices: '/dev/snd/timer' is not allowed; allowed: "
    assert error_of(claim) == f"{place}no devices, because the DeviceClass has no allowedDevices"
    assert error_of(of_class(allowedDevices=["/dev/dri/*", "/dev/*"]), claim) == f"{place}/dev/dri/*, /dev/*"
    assert effective_parameters([of_class(allowedDevices=["/dev/s?d/t*"]), claim]).devices == ("/dev/snd/timer",)


def test_a_wildcard_does_not_leave_its_part_of_the_path() -> None:
    for path in ("/dev/sndx", "/dev/snd/a/b", "/dev/snd/.hidden", "/dev/snd"):
        assert "is not allowed" in error_of(of_class(allowedDevices=["/dev/snd/*"]), of_claim(devices=[path]))


def test_a_claim_cannot_allow_devices() -> None:
    """Nor is one that comes first checked against no patterns."""
    error = "parameters of the ResourceClaim: allowedDevices: only a DeviceClass can set it"
    assert error_of(of_claim(allowedDevices=["/dev/*"], devices=["/dev/mem"])) == error
    assert "is not allowed" in error_of(of_claim(devices=["/dev/mem"]), of_class(allowedDevices=["/dev/mem"]))


def test_container_paths_must_be_free() -> None:
    cases: list[tuple[Sequence[str], Sequence[str], str]] = [
        (["/dev/a", "/dev/a/b"], [], "'/dev/a/b' conflicts with '/dev/a'"),
        (["/dev/taken/x"], [], "'/dev/taken/x' conflicts with '/dev/taken'"),
        (["/dev/fuse"], ["/dev/fuse"], "'/dev/fuse' conflicts with '/dev/fuse'"),
        ([], ["/dev/taken"], "'/dev/taken' conflicts with '/dev/taken'"),
    ]
    for paths, devices, conflict in cases:
        parameters = effective_parameters([of_class(containerPaths=paths, devices=devices)])
        with pytest.raises(InvalidRequestError, match=re.escape(conflict)):
            require_free(parameters, parameters.devices, ["/dev/taken"])
    require_free(effective_parameters([of_class(containerPaths=["/dev/a"])]), [], [])


def test_examples_are_allowed_and_match_the_published_schema() -> None:
    schema = msgspec.json.decode(docs.PARAMETERS.read_bytes())
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["apiVersion", "kind"]
    assert {*schema["properties"]} == {"apiVersion", "kind", *PARAMETER_KEYS}
