"""The search for paths and patterns below a root, and the directories on which its result depends."""

from pathlib import Path

import pytest

from aosp_plugin.binder.devices.patterns import PathSearch
from aosp_plugin.binder.driver.host import Host


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with GPUs, one of which is reached by a link that is absolute below the root."""
    dri = tmp_path / "dev/dri"
    (dri / "by-path").mkdir(parents=True)
    for name in ("renderD128", "renderD1000", "card0", ".renderD1"):
        (dri / name).touch()
    (dri / "by-path/pci-0-render").symlink_to("/dev/dri/renderD128")
    (tmp_path / "gpu").symlink_to("/dev/dri")
    return tmp_path


def test_files_are_found_below_the_root(root: Path) -> None:
    """In natural order. A path without wildcards need not exist, and the names of links are kept."""
    search = PathSearch(Host(str(root)))
    for path, found in (
        ("/dev/dri/renderD*", ["/dev/dri/renderD128", "/dev/dri/renderD1000"]),
        ("/dev/*/renderD128", ["/dev/dri/renderD128"]),
        ("/dev/dri/*/*-render", ["/dev/dri/by-path/pci-0-render"]),
        ("/gpu/card?", ["/gpu/card0"]),
        ("/nowhere/*", []),
        ("/dev/dri/card0/*", []),
        ("/dev//fuse", ["/dev/fuse"]),
    ):
        assert search.find(path) == found


def dependencies(root: Path, *paths: str) -> PathSearch:
    search = PathSearch(Host(str(root)))
    for path in paths:
        for file in search.find(path):
            try:
                search.status(file)
            except FileNotFoundError:
                continue
    return search


def test_directories_in_which_a_change_changes_the_result_are_watched(root: Path) -> None:
    """Of a directory that does not exist, it is the nearest existing ancestor."""
    for path, directories in (
        ("/dev/fuse", {"dev"}),
        ("/dev/dma_heap/*", {"dev"}),
        ("/dev/none/of/*", {"dev"}),
        ("/gpu/card0", {"", "dev/dri"}),
        ("/dev/dri/by-path/*", {"dev/dri", "dev/dri/by-path"}),
        ("/dev/*/card0", {"dev", "dev/dri"}),
    ):
        assert dependencies(root, path).directories == {str(root / name) for name in directories}


def test_links_in_a_circle_are_an_error(root: Path) -> None:
    (root / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="Too many levels"):
        PathSearch(Host(str(root))).status("/circle")
