"""Repairs of what a DRA driver has on the host, and claims that are gone without the kubelet's Unprepare."""

import asyncio
import contextlib
import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from unittest import mock

import pytest

from aosp_plugin.framework.apiserver.protocol import ApiError, NotFoundError, Request
from aosp_plugin.framework.backend import ContainerEdits
from aosp_plugin.framework.conditions import CLAIMS_FAILING, CLAIMS_NOT_REPAIRED, CLAIMS_UNSERVED
from aosp_plugin.framework.dra.claim_records import ClaimReference
from aosp_plugin.framework.dra.claims import Claims
from aosp_plugin.framework.errors import ClaimError, ClaimRecordError, FormerClaimError
from aosp_plugin.framework.file_events import FileEvents
from aosp_plugin.framework.metrics import Repaired
from aosp_plugin.framework.timing import Timings
from tests.claims import TIMINGS, DirectoryBackend, Node, make_node, reference, refusal
from tests.support import PATIENCE, causes, reported, until

FAST = TIMINGS._replace(claim_round=0.05, claim_ask=0.05, hang=0.5, recheck=0.05)
"""Frequent rounds."""
IMPATIENT = FAST._replace(claim_conflict=0.2)
"""The same, and claims do not wait for devices of others for long."""
EVENTS_ONLY = TIMINGS._replace(claim_round=3600.0)
"""No round after the first: what is repaired is repaired because of a file event."""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return make_node(tmp_path)


@contextlib.asynccontextmanager
async def reconciled(node: Node, timings: Timings = FAST, gone: float = 0.1) -> AsyncIterator[Claims]:
    """Run the claims of a new process."""
    async with node.claims(timings=timings._replace(claim_gone=gone)) as claims:
        await claims.repair()
        files = FileEvents()
        task = asyncio.create_task(claims.run(files.subscribe()))
        try:
            await until(lambda: not claims._requested.is_set())
            yield claims
        finally:
            node.backend.resume.set()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            files.close()


async def prepare(node: Node, claims: Claims, uid: str, *ids: str) -> None:
    await claims.prepare(node.source.add(uid, *ids), PATIENCE)


def fail(node: Node, fault: str) -> None:
    """Let the API server not say whether claims exist."""
    if fault == "away":
        node.source.down = True
    elif fault == "forbidden":
        node.source.errors = [ApiError(Request("get", "/claims"), "403", status=403)] * 1000
    else:
        node.source.errors = [NotFoundError(None, "404 page not found", status=404)] * 1000


def end(node: Node, change: str) -> None:
    """Let the API server say that the devices of claim a are free."""
    claim = node.source.objects["claim-a"]
    if change == "deleted":
        node.source.remove("a")
    elif change == "replaced":
        claim["metadata"]["uid"] = "c"
    elif change == "deallocated":
        claim["status"] = {}
    else:
        claim["status"]["allocation"]["devices"]["results"][0]["pool"] = "node-2/00000"


def use(node: Node, *phones: str) -> None:
    """Let containers have phones: what they have is lost if a phone is made anew."""
    for phone in phones:
        (node.backend.directory / phone / "in-use").touch()


def in_use(node: Node) -> set[str]:
    return {path.parent.name for path in node.backend.directory.glob("*/in-use")}


@pytest.fixture
async def ended(node: Node) -> Node:
    """Return a node whose driver has ended; a container has phone1 by a claim ``a``."""
    async with node.claims() as claims:
        await prepare(node, claims, "a", "phone1")
    use(node, "phone1")
    return node


# -- what is lost within a boot


def replace_by_pipe(node: Node) -> None:
    node.spec("a").unlink()
    os.mkfifo(node.spec("a"))


def replace_by_loop(node: Node) -> None:
    node.spec("a").unlink()
    node.spec("a").symlink_to(node.spec("a").name)


def remove_all_records_and_the_lock(node: Node) -> None:
    for path in [*node.state.iterdir()]:
        path.unlink()


@pytest.mark.parametrize(
    ("kind", "timings", "damage"),
    [
        pytest.param("spec", EVENTS_ONLY, lambda node: node.spec("a").unlink(), id="spec deleted"),
        pytest.param("spec", EVENTS_ONLY, replace_by_pipe, id="spec is a pipe"),
        pytest.param("spec", EVENTS_ONLY, replace_by_loop, id="spec is a link to itself"),
        pytest.param("record", EVENTS_ONLY, lambda node: node.record("a").unlink(), id="record deleted"),
        # No event reports that the content of a file has changed (``events.inotify``): the next round notices it.
        pytest.param("record", FAST, lambda node: node.record("a").write_bytes(b""), id="record empty"),
        pytest.param("record", FAST, lambda node: node.record("a").write_bytes(b"{"), id="record damaged"),
        pytest.param("record", FAST, remove_all_records_and_the_lock, id="records deleted with their lock"),
        pytest.param("record", FAST, lambda node: node.state.rename(node.root / "removed"), id="directory moved"),
    ],
)
async def test_a_file_that_is_lost_while_the_driver_runs_is_written_again(
    node: Node, kind: Repaired, timings: Timings, damage: Callable[[Node], object]
) -> None:
    """The device stays as it is, and claims are prepared and unprepared as before: no file makes that hang."""

    def content() -> tuple[bytes, ...]:
        return tuple(path.read_bytes() for path in (node.spec("a"), node.record("a")) if not path.is_symlink())

    async with reconciled(node, timings) as claims:
        await prepare(node, claims, "a", "phone1")
        use(node, "phone1")
        written = content()
        damage(node)
        await until(lambda: node.repairs(kind) > 0)
        assert (content(), set(claims.prepared), in_use(node)) == (written, {"a"}, {"phone1"})
        await prepare(node, claims, "b", "phone2")
        await claims.unprepare(reference("a"), PATIENCE)
        assert node.backend.mounted == {"phone2"}


async def test_a_repair_that_fails_is_not_repeated_because_of_its_own_files(node: Node) -> None:
    async with reconciled(node, EVENTS_ONLY._replace(recheck=3600.0)) as claims:
        await prepare(node, claims, "a", "phone1")
        node.spec("a").unlink()
        (node.spec("a") / "in-the-way").mkdir(parents=True)
        await until(lambda: node.repairs("spec", "failed") > 0)
        for _ in range(20):
            await prepare(node, claims, "b", "phone2")
            await claims.unprepare(reference("b"), PATIENCE)
    assert node.repairs("spec", "failed") == 1


async def test_lost_devices_are_reported_until_they_are_prepared_again_with_a_new_spec(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async with reconciled(node, EVENTS_ONLY._replace(recheck=0.05)) as claims:
        await prepare(node, claims, "a", "phone1")
        written = node.spec("a").stat().st_ino
        node.backend.fail = {"prepare"}
        (node.backend.directory / "phone1").rmdir()
        claims.check()
        await until(lambda: "prepare fails" in causes(claims))
        await until(lambda: node.repairs("mount", "failed") > 2)
        node.backend.fail = set()
        assert not causes(claims, CLAIMS_FAILING)
        await until(lambda: not reported(claims))
        assert node.repairs("mount") > 0
        assert node.backend.mounted == {"phone1"}
        assert node.spec("a").stat().st_ino != written
    levels = [record.levelno for record in caplog.records if "reconciliation" in record.message]
    assert levels.count(logging.ERROR) == 1


async def test_a_repair_for_a_claim_that_waits_is_repeated_if_it_fails(node: Node) -> None:
    """A round that asks a silent API server meanwhile must not wait for the next one, deaf to file events."""
    timings = EVENTS_ONLY._replace(claim_conflict=0.2, hang=0.5, recheck=0.05)
    async with reconciled(node, timings, gone=0.0) as claims:
        for uid, phone in {"silent": "phone1", "gone": "phone2", "other": "phone3"}.items():
            await prepare(node, claims, uid, phone)
        node.source.silent = "claim-silent"
        claims.check()
        await node.source.requested("claim-silent", 2)
        node.source.remove("gone")
        node.backend.fail = {"unprepare"}
        assert "is still prepared" in await refusal(claims, node.source.add("new", "phone2"))
        await until(lambda: "claim gone cannot be repaired" in causes(claims))
        node.spec("other").unlink()
        await until(node.spec("other").exists)


# -- after the end of a process


async def test_the_device_and_the_spec_of_a_claim_whose_record_is_lost_stay(ended: Node) -> None:
    """No other claim can have the device: the scheduler has given it to this one."""
    shutil.rmtree(ended.state)
    async with reconciled(ended, IMPATIENT) as claims:
        await prepare(ended, claims, "b", "phone2")
        await claims.repair()
        assert (in_use(ended), ended.records, ended.specs) == ({"phone1"}, {"b"}, {"a", "b"})
        await claims.unprepare(reference("a"), PATIENCE)
        await prepare(ended, claims, "c", "phone1")
        assert not in_use(ended)


async def test_specs_follow_the_configured_directory(ended: Node) -> None:
    """A spec in the former one might have precedence for the runtime, and would not follow a repair."""
    content = ended.spec("a").read_bytes()
    moved = ended._replace(cdi_name="etc-cdi")
    async with moved.claims() as claims:
        await claims.repair()
        assert set(claims.prepared) == {"a"}
        assert (moved.spec("a").read_bytes(), ended.specs, in_use(ended)) == (content, set(), {"phone1"})
        await claims.unprepare(reference("a"), PATIENCE)
        assert (moved.specs, ended.backend.mounted) == (set(), set())


async def test_a_claim_without_a_spec_follows_the_configured_directory(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its device has a CDI name of another program."""
    edits = ContainerEdits(cdi_devices=["example.com/phone=phone1"])
    monkeypatch.setattr(node.backend, "prepare", lambda *_: [edits])
    node.cdi.mkdir()
    async with node.claims() as claims:
        await prepare(node, claims, "a", "phone1")
    async with node._replace(cdi_name="etc-cdi").claims() as claims:
        await claims.repair()
        assert not causes(claims, CLAIMS_NOT_REPAIRED)


async def test_a_spec_that_could_not_be_moved_goes_with_its_claim(ended: Node) -> None:
    """Such as on a full disk."""
    moved = ended._replace(cdi_name="etc-cdi")
    moved.cdi.touch()  # no directory
    async with moved.claims() as claims:
        await claims.repair()
        assert ended.specs == {"a"}
        moved.cdi.unlink()
        await claims.unprepare(reference("a"), PATIENCE)
        assert (ended.specs, ended.backend.mounted) == (set(), set())


async def test_a_former_directory_that_is_not_accessible_is_reported_once(
    ended: Node, caplog: pytest.LogCaptureFixture
) -> None:
    ended.cdi.rename(ended.root / "hidden")
    moved = ended._replace(cdi_name="etc-cdi")
    async with moved.claims() as claims:
        for _ in range(2):
            await claims.repair()
    (warning,) = [record for record in caplog.records if "former CDI directory is not accessible" in record.message]
    assert warning.__dict__["path"] == str(ended.spec("a"))
    assert moved.specs == {"a"}


async def test_a_container_may_have_what_its_device_was_before_a_link_led_elsewhere(node: Node) -> None:
    """What is there now goes to nobody else either, and the spec follows the configured directory as before."""

    def leading_to(file: str) -> contextlib.AbstractContextManager[object]:
        return mock.patch.object(node.backend, "places", lambda device_id: [f"/dev/{device_id}", f"/binderfs/{file}"])

    with leading_to("a"):
        async with node.claims() as claims:
            await prepare(node, claims, "a", "phone1")
    moved = node._replace(cdi_name="etc-cdi")
    with leading_to("b"):
        async with moved.claims() as claims:
            await claims.repair()
            (record,) = claims.prepared.values()
            assert claims._store.content(record).places == ("/binderfs/a", "/binderfs/b", "/dev/phone1")
            assert (node.specs, moved.specs) == (set(), {"a"})


async def test_a_claim_whose_devices_are_in_a_former_directory_stays_until_that_is_configured_again(
    ended: Node,
) -> None:
    content = ended.spec("a").read_bytes()
    moved = ended._replace(backend=DirectoryBackend(ended.root / "moved"))
    async with moved.claims() as claims:
        await claims.repair()
        path = f"{ended.backend.directory}/phone1"
        text = f"its devices are {path}, as configured when claim default/claim-a (UID a) was prepared"
        assert text in causes(claims, CLAIMS_UNSERVED)
        with pytest.raises(FormerClaimError, match=re.escape(text)):
            await claims.unprepare(reference("a"), PATIENCE)
        with pytest.raises(FormerClaimError, match=re.escape(text)):
            await claims.prepare(reference("a"), PATIENCE)
        await prepare(moved, claims, "b", "phone2")
        written = ended.record("a").read_bytes()
        ended.record("a").write_text("")
        await claims.repair()
        assert ended.record("a").read_bytes() == written
        assert (ended.spec("a").read_bytes(), moved.specs, in_use(ended)) == (content, {"a", "b"}, {"phone1"})
    async with ended.claims() as claims:
        await claims.unprepare(reference("a"), PATIENCE)
        assert ended.specs == {"b"}


async def test_a_claim_of_a_former_configuration_that_is_gone_is_released_when_that_is_back(ended: Node) -> None:
    """Until then, it is repaired no more often than the API server is asked."""
    ended.source.remove("a")
    moved = ended._replace(backend=DirectoryBackend(ended.root / "moved"))
    async with reconciled(moved, gone=0.0) as claims:
        await until(lambda: "a" in claims.api.ended)
        with mock.patch.object(claims._host, "repair", wraps=claims._host.repair) as repair:
            await ended.source.requested("claim-a", ended.source.requests.count("claim-a") + 3)
        assert repair.call_count <= 4
        assert ended.specs == {"a"}
    async with reconciled(ended, gone=0.0):
        await until(lambda: not ended.records)
        assert ended.specs == set()


class Pairs(DirectoryBackend):
    """Devices of two phones each, of which the first one is the ID."""

    def places(self, device_id: str) -> Collection[str]:
        """Return the directories of both phones."""
        first = int(device_id.removeprefix("phone"))
        return [str(self.directory / f"phone{number}") for number in (first, first + 1)]


@pytest.mark.parametrize(
    ("former", "device", "later", "other"),
    [
        (DirectoryBackend, "phone1", Pairs, "phone0"),
        (Pairs, "phone0", DirectoryBackend, "phone1"),
    ],
)
async def test_a_device_that_a_claim_has_by_another_id_is_not_given(
    node: Node, former: type[DirectoryBackend], device: str, later: type[DirectoryBackend], other: str
) -> None:
    """The devices of a node were grouped in another way while a claim was prepared."""
    node = node._replace(backend=former(node.backend.directory))
    async with node.claims() as claims:
        await prepare(node, claims, "a", device)
    regrouped = node._replace(backend=later(node.backend.directory))
    async with regrouped.claims(timings=IMPATIENT) as claims:
        await claims.repair()
        claim = regrouped.source.add("b", other)
        assert "still prepared for claim default/claim-a" in await refusal(claims, claim)
        assert regrouped.records == {"a"}
        await claims.unprepare(reference("a"), PATIENCE)
        await claims.prepare(claim, PATIENCE)


async def test_a_directory_that_has_another_path_keeps_its_specs(ended: Node) -> None:
    """Such as /run/cdi and /var/run/cdi."""
    (ended.root / "link").symlink_to(ended.cdi)
    renamed = ended._replace(cdi_name="link")
    async with renamed.claims() as claims:
        for _ in range(2):
            await claims.repair()
            assert ended.specs == {"a"}
        ended.spec("a").unlink()
        await claims.repair()
        assert ended.specs == {"a"}


# -- damaged records


@pytest.fixture
async def damaged(ended: Node) -> Node:
    """Return a node whose driver has ended; the record of its claim ``a`` is damaged, that of ``b`` is not."""
    async with ended.claims() as claims:
        await prepare(ended, claims, "b", "phone2")
    use(ended, "phone2")
    ended.record("a").write_text("")
    return ended


async def test_a_damaged_record_is_restored_from_the_api_server(
    damaged: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Its device need not be listed any more: the count was lowered meanwhile."""
    damaged.spec("a").unlink()
    damaged.backend.ids = ["phone0", "phone2"]
    async with reconciled(damaged, IMPATIENT) as claims:
        await until(lambda: set(claims.prepared) == {"a", "b"})
        await until(lambda: not causes(claims, CLAIMS_FAILING))
        assert claims.prepared["a"].ids == ("phone1",)
        text = await refusal(claims, damaged.source.add("c", "phone2"))
        assert "is still prepared for claim default/claim-b" in text
    assert (damaged.specs, in_use(damaged)) == ({"a", "b"}, {"phone1", "phone2"})
    (failed, *_) = [record for record in caplog.records if record.message.startswith("claim reconciliation failed")]
    assert f"the claim record {damaged.record('a')} is damaged" in failed.__dict__["error"]


@pytest.mark.parametrize("fault", ["away", "forbidden", "proxy"])
async def test_nothing_is_released_without_the_api_servers_word(damaged: Node, fault: str) -> None:
    """Neither a claim that is gone, nor one with a damaged record, which may have any device."""
    damaged.source.remove("b")
    fail(damaged, fault)
    async with reconciled(damaged, gone=0.0) as claims:
        for name in ("claim-a", "claim-b"):
            await damaged.source.requested(name, 4)
        assert set(claims.prepared) == {"b"}
        assert in_use(damaged) == {"phone1", "phone2"}
        await claims.unprepare(reference("b"), PATIENCE)
        await claims.repair()
        assert f"{damaged.record('a')} is damaged" in causes(claims, CLAIMS_FAILING)
        assert in_use(damaged) == {"phone1"}


async def test_no_further_claim_is_prepared_while_a_record_is_damaged(damaged: Node) -> None:
    damaged.source.remove("a")
    async with damaged.claims(timings=FAST._replace(claim_gone=3600.0)) as claims:
        await claims.repair()
        assert "claim_default_claim-a_a.json is damaged" in await refusal(claims, damaged.source.add("c", "phone1"))
        assert await claims.prepare(reference("b"), PATIENCE)
        assert in_use(damaged) == {"phone1", "phone2"}


@pytest.mark.parametrize("change", ["deleted", "replaced", "deallocated", "unprepared"])
async def test_a_damaged_record_of_a_claim_that_has_ended_is_removed(damaged: Node, change: str) -> None:
    """The kubelet ends it also while the API server is away."""
    damaged.source.down = change == "unprepared"
    if change != "unprepared":
        end(damaged, change)
    async with reconciled(damaged) as claims:
        if change == "unprepared":
            await claims.unprepare(reference("a"), PATIENCE)
        await until(lambda: not causes(claims, CLAIMS_FAILING) and damaged.records == {"b"})
        assert damaged.specs == {"b"}


async def test_a_device_that_a_claim_with_a_restored_record_has_now_is_not_released(damaged: Node) -> None:
    """The scheduler knew before the kubelet that the claim of its former pod has ended."""
    damaged.source.add("a", "phone2")
    damaged.source.remove("b")
    async with reconciled(damaged, gone=3600.0) as claims:
        await until(lambda: set(claims.prepared) == {"a", "b"})
        await claims.unprepare(reference("b"), PATIENCE)
        assert (set(claims.prepared), in_use(damaged)) == ({"a"}, {"phone1", "phone2"})


# -- another driver with the same devices, as after a change of the resource's name


@pytest.fixture
def renamed(ended: Node) -> Node:
    """Return a node whose driver has got another name; a claim of the former one has phone1."""
    return ended._replace(driver="tablet.example.com")


async def prepare_renamed(node: Node, claims: Claims, uid: str, *ids: str) -> None:
    await claims.prepare(add_renamed(node, uid, *ids), PATIENCE)


def add_renamed(node: Node, uid: str, *ids: str) -> ClaimReference:
    claim = node.source.add(uid, *ids)
    for result in node.source.objects[f"claim-{uid}"]["status"]["allocation"]["devices"]["results"]:
        result["driver"] = node.driver
    return claim


async def test_a_device_of_another_drivers_claim_is_not_given_until_that_one_has_ended(
    node: Node, renamed: Node
) -> None:
    """Nor is it released."""
    async with renamed.claims(timings=IMPATIENT) as claims:
        await claims.repair()
        await prepare_renamed(renamed, claims, "b", "phone2")
        with pytest.raises(ClaimError, match="phone1 is still prepared for claim default/claim-a"):
            await prepare_renamed(renamed, claims, "c", "phone1")
        await claims.repair()
        assert (in_use(node), node.records, renamed.records) == ({"phone1"}, {"a"}, {"b"})
    async with node.claims() as former, renamed.claims() as claims:
        await claims.repair()
        asked = renamed.source.requests.count("claim-a")
        waiting = asyncio.create_task(prepare_renamed(renamed, claims, "c", "phone1"))
        await renamed.source.requested("claim-a", asked + 1)
        await former.unprepare(reference("a"), PATIENCE)
        await waiting
        await former.repair()
        await claims.repair()
        assert node.backend.mounted == {"phone1", "phone2"}
        assert (node.records, renamed.records) == (set(), {"b", "c"})


async def test_a_device_that_a_claim_of_another_driver_has_too_is_not_released(node: Node, renamed: Node) -> None:
    claim = add_renamed(renamed, "b", "phone1")
    renamed.state.mkdir()
    renamed.record("b").write_text("")  # restored from the API server, which knows of no other driver
    async with reconciled(renamed, gone=3600.0) as claims:
        await until(lambda: set(claims.prepared) == {"b"})
        await claims.unprepare(claim, PATIENCE)
        assert (set(claims.prepared), in_use(node)) == (set(), {"phone1"})


async def test_a_damaged_record_of_another_driver_holds_what_is_prepared(node: Node, renamed: Node) -> None:
    node.record("a").write_text("")
    async with renamed.claims() as claims, node.claims() as former:
        await claims.repair()
        damaged = f"{node.record('a')} is damaged"
        assert damaged in causes(claims, CLAIMS_FAILING)
        with pytest.raises(ClaimRecordError, match=damaged):
            await prepare_renamed(renamed, claims, "b", "phone1")
        assert in_use(node) == {"phone1"}
        await former.unprepare(reference("a"), PATIENCE)
        await prepare_renamed(renamed, claims, "b", "phone1")
        assert not in_use(node)


# -- other boots


async def test_nothing_of_an_earlier_boot_is_used(ended: Node) -> None:
    ended.boot("boot-2")
    shutil.rmtree(ended.backend.directory / "phone1")  # a mount
    async with ended.claims() as claims:
        await claims.repair()
        assert not claims.prepared
        assert not ended.records
        assert ended.specs == ended.backend.mounted == set()  # also where specs survive a boot
        await prepare(ended, claims, "b", "phone1")


# -- claims that are gone


@pytest.mark.parametrize("change", ["deleted", "replaced", "deallocated", "moved"])
async def test_a_claim_that_is_gone_is_unprepared(node: Node, change: str) -> None:
    async with reconciled(node) as claims:
        await prepare(node, claims, "a", "phone1")
        await prepare(node, claims, "b", "phone2")
        end(node, change)
        await until(lambda: set(claims.prepared) == {"b"})
        await until(lambda: not claims.api.gone)
        assert node.backend.mounted == {"phone2"}
        await until(lambda: node.repairs("claim") > 0)


async def test_a_claim_with_a_device_of_another_driver_as_well_is_needed(node: Node) -> None:
    async with reconciled(node, gone=0.0) as claims:
        claim = node.source.add("a", "phone1")
        results = node.source.objects["claim-a"]["status"]["allocation"]["devices"]["results"]
        results.append({"request": "gpu", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu0"})
        await claims.prepare(claim, PATIENCE)
        await node.source.requested("claim-a", node.source.requests.count("claim-a") + 4)
        assert (set(claims.prepared), node.backend.mounted) == ({"a"}, {"phone1"})


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_claim_that_was_gone_stays_if_it_is_prepared_again(node: Node, *, is_answered: bool) -> None:
    """The scheduler had deallocated it, and allocated the same device again."""
    async with node.claims(timings=TIMINGS._replace(claim_gone=0.0)) as claims:
        await prepare(node, claims, "a", "phone1")
        allocated, node.source.objects["claim-a"]["status"] = node.source.objects["claim-a"]["status"], {}
        for _ in range(2):
            assert await claims.api.ask(claims.prepared["a"], PATIENCE)
        assert [*claims.api.ended] == ["a"]
        node.source.objects["claim-a"]["status"] = allocated
        node.source.down = not is_answered
        await claims.prepare(reference("a"), PATIENCE)
        await claims.repair()
        assert node.specs == {"a"}
        assert node.backend.mounted == {"phone1"}
