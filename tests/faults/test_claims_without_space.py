"""Claims on file systems without any space."""

from pathlib import Path

import pytest

from aosp_plugin.framework.conditions import CLAIMS_FAILING
from aosp_plugin.framework.dra.claims import Claims
from aosp_plugin.framework.errors import PluginError
from tests.claims import Node, make_node, reference
from tests.support import PATIENCE, causes, fill, mounted_tmpfs, reported


async def prepared(claims: Claims, node: Node, uid: str, device_id: str) -> str:
    """Prepare a claim; return the error, empty for success."""
    try:
        await claims.prepare(node.source.add(uid, device_id), PATIENCE)
    except (OSError, PluginError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("full", ["specs", "records"])
async def test_a_full_file_system_refuses_claims_and_keeps_no_pod_from_ending(tmp_path: Path, full: str) -> None:
    """The refusal names the file."""
    node = make_node(tmp_path)
    directory = node.cdi if full == "specs" else node.state
    directory.mkdir(parents=True)
    with mounted_tmpfs(directory):
        async with node.claims() as claims:
            assert not await prepared(claims, node, "a", "phone1")
            assert not await prepared(claims, node, "b", "phone2")
            fill(directory)
            text = await prepared(claims, node, "c", "phone3")
            assert f"{directory}/{'phone' if full == 'specs' else 'claim_default_claim-c_c.json'}" in text
            assert "No space left on device" in text
            assert set(claims.prepared) == {"a", "b"}
            assert node.backend.mounted == {"phone1", "phone2"}
            assert (node.specs - {"filler"}, node.records) == ({"a", "b"}, {"a", "b"})
            await claims.unprepare(reference("a"), PATIENCE)
            assert set(claims.prepared) == {"b"}
            (directory / "filler").unlink()
            assert not await prepared(claims, node, "c", "phone3")
        async with node.claims() as claims:
            await claims.repair()
            assert set(claims.prepared) == {"b", "c"}
            assert node.backend.mounted == {"phone2", "phone3"}


async def test_specs_are_restored_when_there_is_space_again(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    node.cdi.mkdir()
    with mounted_tmpfs(node.cdi):
        async with node.claims() as claims:
            assert not await prepared(claims, node, "a", "phone1")
            node.spec("a").unlink()
            fill(node.cdi)
            await claims.repair()
            assert "No space left on device" in causes(claims, CLAIMS_FAILING)
            assert set(claims.prepared) == {"a"}
            (node.cdi / "filler").unlink()
            await claims.repair()
            assert not reported(claims)
        assert node.specs == {"a"}
