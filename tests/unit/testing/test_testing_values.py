"""Small values: pods, faults, texts of errors."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from aosp_plugin import testing
from aosp_plugin.testing import AdmissionError, Behaviour, Container, Faults, Pod
from aosp_plugin.testing.endpoint import go_error


def test_a_pods_uid_follows_from_its_name() -> None:
    """The same name is the same pod, another name another one; a uid that is given stays."""
    assert Pod("a", []).uid == Pod("a", [Container("c")]).uid != Pod("b", []).uid
    assert Pod("a", [], uid="x").uid == "x"


def test_a_container_is_found_by_name() -> None:
    """Init containers too; another name is a KeyError."""
    pod = Pod("p", [Container("main")], [Container("init")])
    assert pod.container("main").name == "main"
    assert pod.container("init").name == "init"
    with pytest.raises(KeyError):
        pod.container("other")


def test_an_admission_error_has_reason_and_message() -> None:
    """Both, and both in its text."""
    error = AdmissionError("Reason", "what happened")
    assert (error.reason, error.message, str(error)) == ("Reason", "what happened", "Reason: what happened")


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        (Behaviour.OLD, "Pod Allocate failed due to X, which is unexpected"),
        (Behaviour.BUGGY, "Pod was rejected: Allocate failed due to X, which is unexpected"),
        (Behaviour.NEW, "Pod was rejected: Allocate failed due to X, which is unexpected"),
    ],
)
def test_a_rejected_pods_message_is_the_kubelets(behaviour: Behaviour, text: str) -> None:
    """The words changed with the versions."""
    assert behaviour.rejection("X") == text


def _rpc_error(code: grpc.StatusCode, details: str | None) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, None)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (grpc.StatusCode.CANCELLED, "Canceled"),
        (grpc.StatusCode.INTERNAL, "Internal"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "ResourceExhausted"),
        (grpc.StatusCode.OUT_OF_RANGE, "OutOfRange"),
        (grpc.StatusCode.OK, "OK"),
    ],
)
def test_an_rpcs_failure_is_put_in_gos_words(code: grpc.StatusCode, name: str) -> None:
    """Go spells its codes in its own way."""
    assert go_error(_rpc_error(code, "boom")) == f"rpc error: code = {name} desc = boom"


def test_an_rpcs_failure_without_details_has_an_empty_description() -> None:
    """Not the word None."""
    assert go_error(_rpc_error(grpc.StatusCode.UNKNOWN, None)) == "rpc error: code = Unknown desc = "


async def test_a_released_register_does_not_hang_again() -> None:
    """One that hangs goes on, one whose caller has left is no trouble, and later ones don't hang."""
    faults = Faults(hang_register=True)
    left, stays = (asyncio.create_task(faults.delay_register()) for _ in range(2))
    await asyncio.wait([left, stays], timeout=0)
    left.cancel()
    await asyncio.wait([left])
    assert not stays.done()
    faults.release_register()
    await stays
    await faults.delay_register()


def test_everything_public_is_listed_and_sorted() -> None:
    """The module's list of names is in order, and each of them is there."""
    assert testing.__all__ == sorted(testing.__all__)
    assert all(hasattr(testing, name) for name in testing.__all__)
