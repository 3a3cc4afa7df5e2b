"""Repairs of what a DRA driver has on the host, and claims that are gone without the kubelet's Unprepare."""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aosp_plugin.framework.apiserver.protocol import ApiError, NotFoundError, Request
from aosp_plugin.framework.dra.claims import Claims
from aosp_plugin.framework.events.file_events import FileEvents
from aosp_plugin.framework.timings import Timings
from tests.claims import PATIENCE, TIMINGS, Node, make_node, reference, refusal
from tests.support import until

FAST = TIMINGS._replace(claim_round=0.05, claim_ask=0.05, hang=0.5, recheck=0.05)
"""Frequent rounds."""
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
        stop, files = asyncio.Event(), FileEvents()
        task = asyncio.create_task(claims.run(files.subscribe(), stop))
        try:
            await until(lambda: not claims._requested.is_set())
            yield claims
        finally:
            node.backend.resume.set()
            stop.set()
            await task
            files.close()


async def prepare(node: Node, claims: Claims, uid: str, *ids: str) -> None:
    await claims.prepare(node.source.add(uid, *ids), PATIENCE)


# -- what is lost within a boot


async def test_what_is_no_file_in_the_place_of_a_spec_is_replaced(node: Node) -> None:
    """Opening it would hang, or fail for all claims."""
    async with reconciled(node, EVENTS_ONLY) as claims:
        await prepare(node, claims, "a", "phone1")
        for make in (os.mkfifo, lambda path: path.symlink_to(path.name)):
            node.spec("a").unlink()
            make(node.spec("a"))
            await until(lambda: node.spec("a").is_file() and not node.spec("a").is_symlink())
        await prepare(node, claims, "b", "phone2")


async def test_a_repair_that_fails_is_not_repeated_because_of_its_own_files(node: Node) -> None:
    failed = ("reconciled", "spec", "failed")
    async with reconciled(node, EVENTS_ONLY._replace(recheck=3600.0)) as claims:
        await prepare(node, claims, "a", "phone1")
        node.spec("a").unlink()
        (node.spec("a") / "in-the-way").mkdir(parents=True)
        await until(lambda: failed in node.observer.events)
        for _ in range(20):
            await prepare(node, claims, "b", "phone2")
            await claims.unprepare(reference("b"), PATIENCE)
    assert node.observer.events.count(failed) == 1


async def test_a_deleted_spec_is_written_again_at_once(node: Node) -> None:
    async with reconciled(node, EVENTS_ONLY) as claims:
        await prepare(node, claims, "a", "phone1")
        content = node.spec("a").read_bytes()
        node.spec("a").unlink()
        await until(node.spec("a").exists)
        assert node.spec("a").read_bytes() == content
    assert ("reconciled", "spec", "ok") in node.observer.events


async def test_lost_devices_are_prepared_again_with_a_new_spec(node: Node) -> None:
    async with reconciled(node) as claims:
        await prepare(node, claims, "a", "phone1")
        written = node.spec("a").stat().st_ino
        (node.backend.directory / "phone1").rmdir()
        await until(lambda: ("reconciled", "mount", "ok") in node.observer.events)
        assert node.backend.mounted == {"phone1"}
        assert node.spec("a").stat().st_ino != written


async def test_what_cannot_be_repaired_is_reported_until_it_is(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    async with reconciled(node) as claims:
        await prepare(node, claims, "a", "phone1")
        node.backend.fail = {"prepare"}
        (node.backend.directory / "phone1").rmdir()
        await until(lambda: "prepare fails" in claims.notice)
        await until(lambda: node.observer.events.count(("reconciled", "mount", "failed")) > 2)
        node.backend.fail = set()
        assert not claims.problem
        await until(lambda: not claims.notice)
        assert node.backend.mounted == {"phone1"}
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
        await until(lambda: "claim gone cannot be repaired" in claims.notice)
        node.spec("other").unlink()
        await until(node.spec("other").exists)


# -- after the end of a process


async def test_the_specs_are_the_records(node: Node) -> None:
    async with node.claims() as claims:
        await prepare(node, claims, "a", "phone1")
        await prepare(node, claims, "b", "phone2", "phone3")
        before = dict(claims.prepared)
    shutil.rmtree(node.state)
    async with node.claims() as claims:
        await claims.repair()
        assert dict(claims.prepared) == before


async def test_nothing_of_an_earlier_boot_is_used(node: Node) -> None:
    async with node.claims() as claims:
        await prepare(node, claims, "a", "phone1")
    node.boot("boot-2")
    async with node.claims() as claims:
        await claims.repair()
        assert not claims.prepared
        assert node.specs == node.backend.mounted == set()
        await prepare(node, claims, "b", "phone1")


async def test_devices_of_no_claim_are_released(node: Node) -> None:
    (node.backend.directory / "phone5").mkdir()
    async with node.claims() as claims:
        await claims.repair()
    assert node.backend.mounted == set()


# -- claims that are gone


@pytest.mark.parametrize("change", ["deleted", "replaced", "deallocated", "moved"])
async def test_a_claim_that_is_gone_is_unprepared(node: Node, change: str) -> None:
    async with reconciled(node) as claims:
        await prepare(node, claims, "a", "phone1")
        await prepare(node, claims, "b", "phone2")
        if change == "deleted":
            node.source.remove("a")
        elif change == "replaced":
            node.source.objects["claim-a"]["metadata"]["uid"] = "c"
        elif change == "deallocated":
            node.source.objects["claim-a"]["status"] = {}
        else:
            node.source.objects["claim-a"]["status"]["allocation"]["devices"]["results"][0]["pool"] = "node-2/00000"
        await until(lambda: set(claims.prepared) == {"b"})
        assert node.backend.mounted == {"phone2"}
        await until(lambda: ("reconciled", "claim", "ok") in node.observer.events)


@pytest.mark.parametrize("fault", ["away", "forbidden", "proxy"])
async def test_nothing_is_unprepared_without_the_api_servers_word(node: Node, fault: str) -> None:
    async with reconciled(node, gone=0.0) as claims:
        await prepare(node, claims, "a", "phone1")
        node.source.remove("a")
        if fault == "away":
            node.source.down = True
        elif fault == "forbidden":
            node.source.errors = [ApiError(Request("get", "/claims"), "403", status=403)] * 1000
        else:
            node.source.errors = [NotFoundError(None, "404 page not found", status=404)] * 1000
        await node.source.requested("claim-a", len(node.source.requests) + 4)
        assert set(claims.prepared) == {"a"}


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_claim_that_was_gone_stays_if_it_is_prepared_again(node: Node, *, is_answered: bool) -> None:
    """The scheduler had deallocated it, and allocated the same device again."""
    async with node.claims(timings=TIMINGS._replace(claim_gone=0.0)) as claims:
        await prepare(node, claims, "a", "phone1")
        allocated, node.source.objects["claim-a"]["status"] = node.source.objects["claim-a"]["status"], {}
        for _ in range(2):
            assert await claims.ask(claims.prepared["a"], PATIENCE) is False
        node.source.objects["claim-a"]["status"] = allocated
        node.source.down = not is_answered
        await claims.prepare(reference("a"), PATIENCE)
        await claims.repair()
        assert node.specs == {"a"}
        assert node.backend.mounted == {"phone1"}


# -- two processes, as in a rolling update


async def test_a_process_with_an_outdated_memory_reads_what_the_other_one_has_done(node: Node) -> None:
    async with node.claims() as old, node.claims() as new:
        await prepare(node, old, "a", "phone1")
        await prepare(node, old, "c", "phone3")
        await prepare(node, new, "a", "phone2")
        await prepare(node, new, "b", "phone1")
        await new.unprepare(reference("c"), PATIENCE)
        await old.repair()
        assert {uid: record.ids for uid, record in old.prepared.items()} == {"a": ("phone2",), "b": ("phone1",)}
        assert node.specs == {"a", "b"}
