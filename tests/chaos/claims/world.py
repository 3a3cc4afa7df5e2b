"""A node: devices, a kubelet, an API server, the process of a driver, and pods with claims."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from typing import TYPE_CHECKING, Any, Final

import yaml

from aosp_plugin.framework.apiserver import protocol
from aosp_plugin.framework.dra import driver_names
from kubelet_standin.dra_kubelet import DraClaim, DraKubelet, DraPod, DraTimings, DraVersion

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kubelet_standin.apiserver import ApiServer

RESOURCE: Final = "aosp.io/binder"
DRIVER: Final = driver_names.driver_name(RESOURCE)
NODE: Final = "node-1"
CLAIMS: Final = protocol.resource_claims("default")
DEVICES: Final = 12
TIMINGS: Final = DraTimings(pod_retry=0.5, termination_retry=0.5, claim_reconcile=2.0, last_retry=2.0, call=10.0)
"""The kubelet's, with shorter pauses after failures, so that a step ends soon."""


class World:
    """One node. Faults change it; ``invariants`` checks it."""

    def __init__(self, directory: Path, seed: int, server: ApiServer) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - repeatable
        self.directory = directory
        self.server = server
        self.version = list(DraVersion)[seed % len(DraVersion)]
        self.kubelet = DraKubelet(
            directory / "plugins_registry", version=self.version, seed=seed, timings=TIMINGS, wipe=self._wipe
        )
        self.devices = {f"aosp_binder{number}" for number in range(DEVICES)}
        self.pods: dict[str, DraPod] = {}
        """The pods that should run, by name."""
        self.owners: dict[str, str] = {}
        """The name of the pod that the scheduler gave each device, by the device's ID."""
        self.process: asyncio.subprocess.Process | None = None
        self.starts = 0
        self._next_pod = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """What happens to each pod now, by its name."""
        self._device_directory.mkdir()
        for device in self.devices:
            self.create_device(device)

    async def _wipe(self, driver: str) -> None:
        if not self.server.running:
            raise ConnectionError("the API server is away")
        selector = f"spec.nodeName={NODE}" + (f",spec.driver={driver}" if driver else "")
        self.server.objects.delete_collection(protocol.RESOURCE_SLICES, selector)

    # -- files

    @property
    def _device_directory(self) -> Path:
        return self.directory / "dev"

    @property
    def state(self) -> Path:
        """The driver's directory."""
        return self.directory / "plugins" / DRIVER

    @property
    def specs(self) -> dict[str, Path]:
        """The CDI specs by the UID of their claim."""
        return {path.stem.rpartition("_")[2]: path for path in (self.directory / "cdi").glob("*.json")}

    def create_device(self, device: str) -> None:
        """Create a device's file, if it is missing."""
        (self._device_directory / device).touch()

    def remove_device(self, device: str) -> None:
        """Remove a device's file."""
        (self._device_directory / device).unlink(missing_ok=True)

    # -- the driver

    async def start_driver(self) -> None:
        """Start the process of the driver."""
        self.starts += 1
        account = self.directory / "account"
        account.mkdir(exist_ok=True)
        self.server.write_service_account(str(account))
        config = {
            "version": "v1",
            "api": "dra",
            "resource_name": RESOURCE,
            "device_dir": str(self._device_directory),
            "kubelet_dir": str(self.directory / "device-plugins"),
            "pod_resources_socket": "",
            "cdi_dir": str(self.directory / "cdi"),
            "service_account_dir": str(account),
            "shared_devices": [],
            "verify": "file",
            "missing_device_ttl": 3600,
            "listen": "",
        }
        path = self.directory / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        with (self.directory / "driver.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "aosp_plugin", "serve", "--config", str(path)),
                env={**os.environ, **self.server.environment, "NODE_NAME": NODE},
                stdout=log,
                stderr=log,
            )

    async def end_driver(self, *, kill: bool) -> None:
        """End the process of the driver."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                (process.kill if kill else process.terminate)()
            await process.wait()

    # -- pods

    def schedule_pod(self) -> DraPod | None:
        """Give a device that is published and free to a new pod, as a scheduler does; None if there is none."""
        free = sorted(self.published() - self.owners.keys())
        if not free or not self.server.running:
            return None
        device = self.rng.choice(free)
        self._next_pod += 1
        name = f"pod-{self._next_pod}"
        claim = self.server.objects.create(CLAIMS, _claim(name, device))
        pod = DraPod(name, (DraClaim.from_object(claim),))
        self.pods[name], self.owners[device] = pod, name
        self._start(name, self.kubelet.run_pod(pod))
        return pod

    def end_pod(self, name: str) -> None:
        """End a pod; its claim is deleted when it is unprepared."""
        self._give_up(name)
        self._start(name, self._end(self.pods.pop(name)))

    async def _end(self, pod: DraPod) -> None:
        await self.kubelet.end_pod(pod)
        self._delete(pod)

    def delete_by_force(self, name: str) -> None:
        """Delete a pod and its claim while the kubelet still has them."""
        self._give_up(name)
        pod = self.pods.pop(name)
        self.kubelet.forget_pod(pod)
        self._delete(pod)

    def _delete(self, pod: DraPod) -> None:
        self.server.objects.delete(protocol.object_path(CLAIMS, pod.claims[0].name))
        self.owners = {device: owner for device, owner in self.owners.items() if owner != pod.name}

    def published(self) -> set[str]:
        """Return the IDs of the published devices without a taint."""
        slices = self.server.objects.list(protocol.RESOURCE_SLICES, f"spec.driver={DRIVER}")
        return {
            device["attributes"]["id"]["string"]
            for each in slices
            for device in each["spec"].get("devices", ())
            if not device.get("taints")
        }

    def _start(self, name: str, work: Any) -> None:
        self._tasks[name] = asyncio.create_task(work)

    def _give_up(self, name: str) -> None:
        """Let the kubelet no longer try to start a pod."""
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    async def settle_pods(self) -> None:
        """Wait until no pod starts or ends."""
        await asyncio.gather(*self._tasks.values())
        self._tasks.clear()

    async def close(self) -> None:
        """End the pods' tasks, and the driver."""
        for name in list(self._tasks):
            self._give_up(name)
        await self.end_driver(kill=True)


def _claim(name: str, device: str) -> Mapping[str, Any]:
    result = {
        "request": "main",
        "driver": DRIVER,
        "pool": driver_names.pool_name(NODE, driver_names.block_of(device)),
        "device": driver_names.device_name(device),
    }
    return {"metadata": {"name": f"claim-of-{name}"}, "status": {"allocation": {"devices": {"results": [result]}}}}
