"""The generated protocol modules match the .proto files."""

from pathlib import Path

from aosp_plugin.framework.api import deviceplugin_pb2 as pb
from hack.proto import ROOT, generate, modules
from kubelet_standin.api import deviceplugin_pb2 as standin


def test_the_generated_modules_are_current(tmp_path: Path) -> None:
    """After a change to a .proto file, run ``make generate``."""
    generated = generate(tmp_path)
    assert generated == modules(ROOT)
    assert [path for path in generated if (tmp_path / path).read_text() != (ROOT / path).read_text()] == []


def test_a_process_can_use_the_messages_of_the_plugin_and_of_the_stand_in_kubelet() -> None:
    """Their names differ; the bytes are the same."""
    of_plugin = pb.RegisterRequest(version="v1beta1", endpoint="a.sock", resource_name="example.com/a")
    of_standin = standin.RegisterRequest.FromString(of_plugin.SerializeToString())
    assert of_standin.resource_name == "example.com/a"
    assert of_standin.DESCRIPTOR.full_name != of_plugin.DESCRIPTOR.full_name
