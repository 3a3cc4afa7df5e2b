"""Shared and spread devices: each change of the files that concerns them is in a directory that is watched."""

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aosp_plugin.backend.shared_paths import SharedFiles, SharedPaths
from aosp_plugin.binder.driver.host import Host
from aosp_plugin.config.keys import Resource, SharedDevice
from aosp_plugin.framework.errors import ConfigError

DEVICES = ["/gpu/card0", "/dev/*/card0", "/gpu/card?", "/dev/dri/by-path/*"]
DIRECTORIES = st.sampled_from(["dev", "dev/dri", "dev/dri/by-path", "dev/other", "gpu"])
FILES = st.sampled_from(
    ["dev/fuse", "dev/dri/card0", "dev/dri/by-path/x", "dev/other/card0", "dev/other/x", "gpu/card0"]
)
ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["device", "file", "remove"]), FILES),
    st.tuples(st.sampled_from(["directory", "remove"]), DIRECTORIES),
    st.tuples(st.one_of(DIRECTORIES, FILES).map("link {}".format), st.one_of(DIRECTORIES, FILES)),
)


class World:
    """Files below a root, and the events that a plugin gets for them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.watched: frozenset[str] = frozenset()
        self.changed: set[str] = set()
        self.files = SharedFiles()

    def change(self, action: str, name: str) -> None:
        """Replace a file, if its directory exists. All links are relative and stay below the root."""
        logical = self.root / name
        try:
            real = logical.parent.resolve(strict=True) / logical.name
        except (OSError, RuntimeError):  # the directory does not exist, or links lead in a circle
            return
        assert real.parent.is_relative_to(self.root), "a test must not change other files"
        if not real.parent.is_dir():
            return
        below = {directory for directory in self.watched if directory.startswith(f"{real}/")}
        self.changed |= ({str(real)} & {*self.watched}) | below
        if str(real.parent) in self.watched:
            self.changed.add(str(real))
        if real.is_dir() and not real.is_symlink():
            shutil.rmtree(real)
        else:
            real.unlink(missing_ok=True)
        if action == "directory":
            real.mkdir()
        elif action == "file":
            real.touch()
        elif action != "remove":
            target = "device" if action == "device" else action.removeprefix("link ")
            real.symlink_to(os.path.relpath(self.root / target, real.parent))

    def scan(self, paths: SharedPaths) -> None:
        """Scan after an event, as the framework does: a directory that is watched from now on counts as changed."""
        while True:
            directories = paths.directories()
            watched = frozenset(filter(os.path.isdir, directories))
            self.changed |= watched - self.watched
            self.watched = watched
            if not self.changed:
                return
            self.changed.clear()
            self.files = paths.scan()
            if paths.directories() == directories:
                return


@pytest.mark.parametrize("device", DEVICES)
@given(bursts=st.lists(st.lists(ACTIONS, min_size=1, max_size=3), min_size=1, max_size=12))
@settings(max_examples=10)
def test_each_change_of_the_result_is_in_a_watched_directory(
    tmp_path_factory: pytest.TempPathFactory, device: str, bursts: list[list[tuple[str, str]]]
) -> None:
    """Directories come and go, links lead elsewhere, and devices are replaced by other files."""
    root = tmp_path_factory.mktemp("root").resolve()
    (root / "device").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Host, "lstat", _lstat)
        world = World(root)
        for name in ("dev", "dev/dri", "dev/dri/by-path", "dev/other"):
            world.change("directory", name)
        world.change("link dev/dri", "gpu")
        resource = Resource(shared_devices=(SharedDevice(path=device, required=True),), spread_devices=(device,))
        woken, full = (SharedPaths(Host(str(root)), resource) for _ in range(2))
        world.files = woken.scan()
        full.scan()
        world.watched = woken.directories()
        for burst in bursts:
            for action in burst:
                world.change(*action)
            world.scan(woken)
            assert world.files == full.scan()
            fresh = SharedPaths(Host(str(root)), resource)
            before_first_scan = fresh.directories()
            with contextlib.suppress(ConfigError):  # a directory in place of a device
                fresh.scan()
                assert fresh.directories() == before_first_scan, "a plugin that starts would scan all devices twice"


_host_lstat = Host.lstat


def _lstat(host: Host, path: str) -> os.stat_result:
    """Return the status of a file; that of a device for the one that all links to devices lead to."""
    return os.stat("/dev/null") if path == "/device" else _host_lstat(host, path)
