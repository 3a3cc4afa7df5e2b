"""Value types of the stand-in kubelet, its error texts, and its public names."""

from types import ModuleType

import grpc
import pytest

import kubelet_standin
from kubelet_standin import Container, Pod, deviceplugin, dra
from kubelet_standin.deviceplugin.endpoint import go_error


def test_pod_uid_is_derived_from_the_name() -> None:
    assert Pod("a", []).uid == Pod("a", [Container("c")]).uid != Pod("b", []).uid
    assert Pod("a", [], uid="x").uid == "x"


@pytest.mark.parametrize(("code", "text"), [("CANCELLED", "Canceled"), ("OK", "OK"), ("NOT_FOUND", "NotFound")])
def test_rpc_error_is_formatted_as_by_grpc_go(code: str, text: str) -> None:
    error = grpc.aio.AioRpcError(grpc.StatusCode[code], grpc.aio.Metadata(), grpc.aio.Metadata(), None, None)
    assert go_error(error) == f"rpc error: code = {text} desc = "


@pytest.mark.parametrize("module", [deviceplugin, dra])
def test_public_names_are_those_of_the_package(module: ModuleType) -> None:
    """They are loaded on first use."""
    assert all(getattr(kubelet_standin, name) is getattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Missing'"):
        kubelet_standin.Missing  # noqa: B018 - the access raises
