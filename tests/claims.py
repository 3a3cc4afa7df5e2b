"""Helpers of the tests of claims: a backend whose devices are directories, and claims as the API server has them."""

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from aosp_plugin.framework.api import dra_pb2 as pb
from aosp_plugin.framework.apiserver.protocol import ApiUnavailableError, NotFoundError
from aosp_plugin.framework.backend import Backend, ClaimParameters, ContainerEdits, Device, DeviceNode, Found, Mount
from aosp_plugin.framework.dra import slices
from aosp_plugin.framework.dra.api_claims import Claim
from aosp_plugin.framework.dra.claim_records import ClaimReference
from aosp_plugin.framework.dra.claims import Claims
from aosp_plugin.framework.errors import InvalidRequestError, PluginError
from aosp_plugin.framework.inventory import Inventory
from aosp_plugin.framework.metrics import Metrics, Repaired, Result
from aosp_plugin.framework.runtime import Runtime
from aosp_plugin.framework.timing import Timings
from aosp_plugin.framework.worker import Worker
from tests.support import PATIENCE, counted

DRIVER, NODE = "phone.aosp.io", "node-1"
TIMINGS = Timings(claim_conflict=20.0, claim_poll=0.02, claim_gone=0.1, claim_verify=0.5)
"""The timings of the product, with short pauses."""


class DirectoryBackend(Backend[Found]):
    """Phones that are directories while they are prepared, in place of mounts.

    ``fail`` has the names of methods that raise an error. A method whose name is in ``hang`` waits for ``resume``.
    The driver unprepares what an earlier claim may have left before it prepares a device, and prepares a device again
    whenever the kubelet asks for its claim.
    """

    resource_name = "aosp.io/phone"

    def __init__(self, directory: Path, count: int = 8) -> None:
        self.directory = directory
        self.directory.mkdir(exist_ok=True)
        self.ids = [f"phone{number}" for number in range(count)]
        self.reasons: dict[str, str] = {}
        """Why a phone is unhealthy, by ID."""
        self.fail: set[str] = set()
        self.hang: set[str] = set()
        self.hanging = threading.Event()
        """Set when a method in ``hang`` has begun."""
        self.resume = threading.Event()
        """Ends the wait of methods in ``hang``, also of those that begin later."""
        self.calls: list[str] = []
        self.parameters: list[Sequence[ClaimParameters]] = []

    def scan(self) -> Found:
        """Return all phones."""
        return Found([Device(device_id, self.reasons.get(device_id, "")) for device_id in self.ids])

    def allocate(self, _found: Found, ids: Sequence[str]) -> ContainerEdits:
        """Refuse: this backend is for claims."""
        raise NotImplementedError

    def prepare(
        self, _found: Found, ids: Sequence[str], parameters: Sequence[ClaimParameters]
    ) -> Sequence[ContainerEdits]:
        """Create the directory of each phone; "broken" in the parameters is an error."""
        self._begin("prepare", ids)
        self.parameters.append(parameters)
        if any("broken" in (each.content or {}) for each in parameters):
            raise InvalidRequestError("parameters: broken is not a key")
        edits = []
        for device_id in ids:
            path = self.directory / device_id
            path.mkdir(exist_ok=True)
            node = DeviceNode(f"{path}/binder", f"/dev/{device_id}-binder")
            edits.append(ContainerEdits([node], [Mount(str(path), f"/phones/{device_id}")], {"PHONE": device_id}))
        return edits

    def is_prepared(self, _found: Found, ids: Sequence[str]) -> bool:
        """Return whether the directories exist."""
        return all((self.directory / device_id).is_dir() for device_id in ids)

    def unprepare(self, ids: Sequence[str]) -> None:
        """Remove the directory of each phone."""
        self._begin("unprepare", ids)
        for device_id in ids:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.directory / device_id)

    def places(self, device_id: str) -> Collection[str]:
        """Return the directory of a phone."""
        return [str(self.directory / device_id)]

    @property
    def mounted(self) -> set[str]:
        """The IDs of the phones that are prepared."""
        return {path.name for path in self.directory.iterdir()}

    def _begin(self, method: str, ids: Sequence[str]) -> None:
        self.calls.append(f"{method} {','.join(ids)}")
        if method in self.hang:
            self.hanging.set()
            self.resume.wait(30)
        if method in self.fail:
            raise OSError(5, f"{method} fails")


def place(device_id: str) -> dict[str, str]:
    """Return driver, pool and device name of a device, as in the result of an allocation."""
    pool = slices.pool_name(NODE, slices.block_of(device_id))
    return {"driver": DRIVER, "pool": pool, "device": slices.device_name(device_id)}


def reference(uid: str) -> ClaimReference:
    """Return a claim as the kubelet names it; its name is derived from its UID."""
    return ClaimReference("default", f"claim-{uid}", uid)


def claim_object(uid: str, requests: Mapping[str, Sequence[str]], *config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ResourceClaim with devices, by request, and configuration."""
    results = [{"request": request, **place(each)} for request, ids in requests.items() for each in ids]
    return {
        "metadata": {"uid": uid, "namespace": "default", "name": f"claim-{uid}"},
        "status": {"allocation": {"devices": {"results": results, "config": list(config)}}},
    }


def parameters(source: str, content: Any, *requests: str, driver: str = DRIVER) -> dict[str, Any]:
    """Return an entry of the configuration of an allocation."""
    return {"source": source, "requests": list(requests), "opaque": {"driver": driver, "parameters": content}}


class FakeSource:
    """Claims as the API server has them."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        """By name."""
        self.errors: list[Exception] = []
        """What the next requests raise."""
        self.down = False
        self.silent = ""
        """Name of a claim about which no request is answered."""
        self.before: Callable[[], object] = lambda: None
        """Called before each answer."""
        self.requests: list[str] = []
        self._requested = asyncio.Event()

    async def requested(self, name: str, times: int = 1) -> None:
        """Wait until a claim has been requested so often."""
        async with asyncio.timeout(PATIENCE):
            while self.requests.count(name) < times:
                self._requested.clear()
                await self._requested.wait()

    def add(self, uid: str, *ids: str, config: Iterable[Mapping[str, Any]] = ()) -> ClaimReference:
        """Add a claim with one request, ``phone``, that has these devices."""
        self.objects[f"claim-{uid}"] = claim_object(uid, {"phone": ids}, *config)
        return reference(uid)

    def remove(self, uid: str) -> None:
        """Delete a claim."""
        del self.objects[f"claim-{uid}"]

    async def get_claim(self, namespace: str, name: str) -> Claim:  # noqa: ARG002 - all are in one
        """Return a claim."""
        self.requests.append(name)
        self.before()
        self._requested.set()
        if name == self.silent:
            await asyncio.Event().wait()
        if self.errors:
            raise self.errors.pop(0)
        if self.down:
            raise ApiUnavailableError(None, "connection refused")
        if name not in self.objects:
            raise NotFoundError(None, f'404 NotFound: resourceclaims "{name}" not found', status=404, reason="NotFound")
        return msgspec.convert(self.objects[name], Claim)


class Node(NamedTuple):
    """The directories of a node, and what a driver uses."""

    root: Path
    backend: DirectoryBackend
    source: FakeSource
    metrics: Metrics
    driver: str = DRIVER
    cdi_name: str = "cdi"

    @property
    def state(self) -> Path:
        """The directory of the driver."""
        return self.root / "plugins" / self.driver

    @property
    def cdi(self) -> Path:
        """The directory of the CDI specs."""
        return self.root / self.cdi_name

    def spec(self, uid: str) -> Path:
        """Return the path of the CDI spec of a claim."""
        return self.cdi / f"{self.driver}-claim_{uid}.json"

    @property
    def specs(self) -> set[str]:
        """The UIDs of the claims with a spec."""
        prefix = f"{self.driver}-claim_"
        found = self.cdi.iterdir() if self.cdi.exists() else ()
        return {path.name.removeprefix(prefix).removesuffix(".json") for path in found}

    def record(self, uid: str) -> Path:
        """Return the path of the record of a claim."""
        return self.state / f"claim_default_claim-{uid}_{uid}.json"

    @property
    def records(self) -> set[str]:
        """The UIDs of the claims with a record."""
        return {path.stem.rpartition("_")[2] for path in self.state.glob("claim_*.json")}

    def boot(self, boot: str) -> None:
        """Set the boot ID."""
        (self.root / "boot_id").write_text(f"{boot}\n")

    def repairs(self, kind: Repaired, result: Result = "ok") -> float:
        """Return how often something was repaired, or could not be."""
        return counted(self.metrics, "claim_repairs_total", kind=kind, result=result)

    @contextlib.asynccontextmanager
    async def claims(
        self,
        *,
        timings: Timings = TIMINGS,
        get_claim: Callable[[str, str], Awaitable[Claim]] | None = None,
        scanned: bool = True,
    ) -> AsyncIterator[Claims]:
        """Run the claims of a new process, in this event loop."""
        inventory, worker = Inventory(), Worker("claims")
        if scanned:
            inventory.publish(self.backend.scan())
        claims = Claims(
            self.backend,
            self.driver,
            NODE,
            get_claim=get_claim or self.source.get_claim,
            worker=worker,
            inventory=inventory,
            state_directory=str(self.state),
            cdi_directory=str(self.cdi),
            runtime=Runtime(self.metrics, timings=timings),
            boot_id_file=str(self.root / "boot_id"),
        )
        try:
            yield claims
        finally:
            self.backend.resume.set()
            await claims.close(PATIENCE)
            worker.close()


def make_node(root: Path) -> Node:
    """Return a node with eight phones, in a directory."""
    (root / "boot_id").write_text("boot-1\n")
    return Node(root, DirectoryBackend(root / "phones"), FakeSource(), Metrics())


async def prepared_devices(claims: Claims, claim: ClaimReference) -> list[pb.Device]:
    """Prepare a claim, which has to succeed."""
    return list(await claims.prepare(claim, PATIENCE))


async def refusal(claims: Claims, claim: ClaimReference, seconds: float = PATIENCE) -> str:
    """Prepare a claim, which has to fail."""
    with pytest.raises((OSError, PluginError)) as refused:
        await claims.prepare(claim, seconds)
    return str(refused.value)


async def unprepare(claims: Claims, *uids: str) -> dict[str, str]:
    """Unprepare claims; return the error of each."""
    errors = dict.fromkeys(uids, "")
    for uid in uids:
        try:
            await claims.unprepare(reference(uid), PATIENCE)
        except (OSError, PluginError) as error:
            errors[uid] = str(error)
    return errors


def nothing_left(node: Node, claims: Claims) -> bool:
    """Return whether no trace of any claim is left."""
    return not node.specs and not node.records and not node.backend.mounted and not claims.prepared
