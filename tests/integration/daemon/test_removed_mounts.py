"""The plugin ends when a directory that its container has as a mount was removed on the host."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aosp_plugin.config.keys import Config, Phones, Resource
from aosp_plugin.config.values import Api
from aosp_plugin.daemon.assembly import end_with_removed_mounts
from aosp_plugin.framework.conditions import Conditions
from aosp_plugin.framework.errors import PluginError
from aosp_plugin.framework.worker import Worker
from tests.support import PATIENCE, mounted, until, without_descriptors

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which requires root")
CDI, PLUGINS, PHONES = "host/var/run/cdi", "kubelet/plugins", "host/run/aosp-binderfs"


@pytest.fixture
def worker() -> Iterator[Worker]:
    with contextlib.closing(Worker("mounts")) as worker:
        yield worker


@needs_root
@pytest.mark.parametrize("directory", [CDI, PLUGINS, PHONES])
async def test_the_plugin_ends_when_a_directory_that_it_has_mounted_was_removed(
    worker: Worker, tmp_path: Path, directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if somebody has made it anew since, and if the plugin uses a directory in it.

    Mounts that cannot be read, as no descriptor is free, are read again.
    """
    directory_of_phones = "/run/aosp-binderfs/claims"
    tablet = Resource(
        resource_name="aosp.io/tablet", api=Api.DRA, phones=Phones(count=1, directory=directory_of_phones)
    )
    config = Config(
        resources=(tablet,),
        host_root=str(tmp_path / "container" / "host"),
        kubelet_dir=str(tmp_path / "container/kubelet/device-plugins"),
    )
    source, target = tmp_path / directory, tmp_path / "container" / directory
    with contextlib.ExitStack() as mounts:
        for each in (CDI, PLUGINS, PHONES):
            for path in (tmp_path / each, tmp_path / "container" / each):
                path.mkdir(parents=True)
            mounts.enter_context(mounted(tmp_path / "container" / each, "--bind", tmp_path / each))
        watch = asyncio.create_task(end_with_removed_mounts(config, Conditions(), worker, interval=0.01))
        done, _ = await asyncio.wait({watch}, timeout=0.1)
        assert not done
        with without_descriptors(os.getpid()):
            source.rmdir()
            source.mkdir()
            await until(lambda: "mounts cannot be read, retrying" in caplog.messages or watch.done())
        with pytest.raises(PluginError, match=f"{target} was removed on the host"):
            await asyncio.wait_for(watch, PATIENCE)
    assert caplog.messages.count("mounts cannot be read, retrying") == 1
