"""CDI specs stay when the plugin ends, whatever ends it, and go when their resource leaves the configuration."""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aosp_plugin import SOCKET_PREFIX
from aosp_plugin.config.keys import Config, Resource
from aosp_plugin.daemon.device_records import DeviceRecord, DeviceRecords
from aosp_plugin.daemon.former_names import remove_stale_specs
from aosp_plugin.framework.backend import DeviceList
from aosp_plugin.framework.cdi import spec_path
from aosp_plugin.framework.sockets import PluginDirectory
from kubelet_standin import Kubelet
from tests.served_node import ServedNode
from tests.support import LISTEN, listed, other_process, until

PHONE, SIDECAR = "aosp.io/phone", "aosp.io/sidecar"
CDI, MOUNTS = ["envvar", "cdi-cri"], ["volume-mounts"]


def resources(**device_lists: list[str]) -> list[dict[str, Any]]:
    """Return resources with a device each; ``device_lists`` are by the second part of the resource name."""
    return [
        {"resource_name": f"aosp.io/{key}", "device_prefix": f"{key}_binder", "device_list": strategies}
        for key, strategies in device_lists.items()
    ]


async def test_spec_stays_until_its_resource_leaves_the_configuration(tmp_path: Path, kubelet: Kubelet) -> None:
    """Containers that run have its names, also if the resource no longer uses CDI, or the plugin does not come up.

    Specs of other programs stay.
    """
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    foreign = {"nvidia.com-gpu.json": "nvidia.com/gpu", "aosp.io_foreign.json": "aosp.io/foreign"}
    for name, kind in foreign.items():
        (cdi / name).write_text(json.dumps({"kind": kind}))

    def specs() -> dict[str, bytes]:
        """Return the content of each spec that a runtime reads, by the kind of its devices."""
        contents = [path.read_bytes() for path in cdi.iterdir() if path.suffix in {".json", ".yaml"}]
        return {json.loads(content)["kind"]: content for content in contents}

    node = ServedNode(tmp_path, kubelet, pod_resources_socket="", cdi_dir=str(cdi))
    for key in ("phone", "sidecar"):
        (node.devices.directory / f"{key}_binder0").touch()
    async with node.serve(resources=resources(phone=CDI, sidecar=CDI)):
        for resource in (PHONE, SIDECAR):
            await listed(kubelet, 1, resource)
        before = specs()
    assert before.keys() == {PHONE, SIDECAR, *foreign.values()}
    assert specs() == before
    async with node.serve(resources=resources(phone=["unknown"])) as broken:
        assert await broken.finish() == 2
    async with node.serve(resources=resources(phone=MOUNTS, sidecar=MOUNTS)):
        for resource in (PHONE, SIDECAR):
            await listed(kubelet, 1, resource)
    assert specs() == before
    async with node.serve(resources=resources(phone=MOUNTS)) as plugin:
        await until(lambda: not os.path.exists(spec_path(str(cdi), SIDECAR)))
        await until(lambda: any("former CDI spec removed" in line and "aosp.io_sidecar" in line for line in plugin.log))
        await listed(kubelet, 1, PHONE)
    del before[SIDECAR]
    assert specs() == before


# -- the same resource in another directory


class Specs:
    """The directories of CDI specs of a host, and a configuration with one resource."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in ("/etc/cdi", "/run/cdi", "/opt/cdi", "/kubelet"):
            (root / directory[1:]).mkdir(parents=True)
        (root / "var").mkdir()
        (root / "var" / "run").symlink_to("/run")  # as on each host

    def remove(self, cdi_dir: str, *further: DeviceRecord) -> list[str]:
        """Start a plugin with this directory, which also knows ``further`` records; return what it has removed."""
        config = Config(
            resources=(Resource(resource_name=PHONE, device_list=(DeviceList.CDI_CRI,)),),
            host_root=str(self.root),
            kubelet_dir=str(self.root / "kubelet"),
            cdi_dir=cdi_dir,
        )
        with contextlib.closing(DeviceRecords(config.kubelet_dir, cdi_dir, PHONE)) as records:
            records.write(PHONE, {}, None, by_plugin=True)
            return remove_stale_specs(config, [*records.own.values(), *further])

    def write(self, *directories: str, resource_name: str = PHONE) -> None:
        """Write the spec of a resource, and one of another program."""
        for directory in directories:
            for name in (resource_name, "nvidia.com/gpu"):
                Path(spec_path(str(self.root) + directory, name)).touch()

    @property
    def places(self) -> set[str]:
        """The directories with a spec of the resource."""
        return {f"/{path.parent.relative_to(self.root)}" for path in self.root.glob("*/cdi/aosp.io_*.json")}


@pytest.fixture
def host(short_directory: Path) -> Specs:
    return Specs(short_directory)


def test_spec_that_another_process_serves_stays_in_its_directory(host: Specs) -> None:
    """In the rolling update that changes the directory, it would be written again."""
    host.write("/run/cdi", "/etc/cdi")
    endpoint = PluginDirectory(f"{host.root}/kubelet", PHONE, SOCKET_PREFIX).next_endpoint(0.0)
    with other_process(LISTEN, f"{host.root}/kubelet/{endpoint}"):
        assert not host.remove("/etc/cdi")
    assert host.remove("/etc/cdi")
    assert host.places == {"/etc/cdi"}


FORMER = DeviceRecord(SIDECAR, 0, {}, ["/opt/cdi"], PHONE)


@pytest.mark.parametrize(
    ("former", "present", "resource_name", "records"),
    [
        ("/run/cdi", "/etc/cdi", PHONE, ()),
        ("/etc/cdi", "/var/run/cdi", PHONE, ()),
        ("/run/cdi", "/opt/cdi", PHONE, ()),
        ("/opt/cdi", "/etc/cdi", PHONE, (DeviceRecord(PHONE, 0, {}, ["/opt/cdi"], PHONE),)),
        ("/opt/cdi", "/etc/cdi", SIDECAR, (FORMER,)),
        ("/run/cdi", "/etc/cdi", SIDECAR, (FORMER,)),
    ],
)
def test_spec_in_another_directory_goes_at_a_start(
    host: Specs, former: str, present: str, resource_name: str, records: Sequence[DeviceRecord]
) -> None:
    """That in /var/run/cdi would have precedence, without an error.

    One of a resource of the configuration stays until the configured directory has it, which may have another path: a
    container that restarts meanwhile requires one of them.
    """
    host.write(former, resource_name=resource_name)
    if resource_name == PHONE:
        assert not host.remove(present, *records)
        assert host.places == {former}
    host.write(present.removeprefix("/var"))
    assert host.remove(present, *records) == [spec_path(f"{host.root}{former}", resource_name)]
    assert not host.remove(present, *records)
    assert host.places == {present.removeprefix("/var")}
    assert len([*host.root.glob("*/cdi/nvidia.com_gpu.json")]) == 2
