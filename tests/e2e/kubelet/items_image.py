"""Items for the content of the plugin's image, as it is in a running container."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final

from tests.e2e.kubelet.items import Items
from tests.e2e.kubelet.plugins import AsPod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.kubelet.node import Node

item = Items()

PROGRAMS: Final = {"/opt/venv/bin/aosp-plugin", "/opt/venv/bin/python"}
_NOT_HERE: Final = re.compile(
    r"/(?:pip|ensurepip|unittest|test|idlelib|tkinter|lib2to3|rich|pygments|pytest|hatchling|roots\.pem)(?:/|\.py|$)"
    r"|/(?:kubelet_standin|kubectl_phones)/|_test\w*\.cpython|\.(?:a|h|c|pyx|pyi|exe)$"
)
"""Paths below Python's directories of what the image leaves out."""
_LIBRARIES: Final = r"/usr/lib/[\w-]+-linux-gnu/[\w.+-]+\.so[\d.]*|/usr/lib/ld-linux-aarch64\.so\.1"
_PYTHON: Final = r"/usr/(?:bin/python3\.\d+|lib/python3\.\d+/.*)|/opt/venv/.*"
_RECORDS: Final = r"/var/lib/dpkg/status\.d/.*|/usr/share/(?:doc/[\w.+-]+/copyright|common-licenses/[\w.-]+)"
_SETTINGS: Final = r"/etc/(?:passwd|group|nsswitch\.conf|debian_version)|/usr/lib/os-release"
_EXPECTED: Final = re.compile(f"{_LIBRARIES}|{_PYTHON}|{_RECORDS}|{_SETTINGS}")

_IMPORT_ALL = """
import importlib, os, pkgutil
import aosp_plugin
names = [module.name for module in pkgutil.walk_packages(aosp_plugin.__path__, "aosp_plugin.")]
names += [name.partition(".")[0] for name in os.listdir(os.path.dirname(os.__file__) + "/lib-dynload")]
for name in names:
    # The demo requires the stand-in kubelet, which is not in the image.
    if not name.endswith("__main__") and not name.startswith("aosp_plugin.demo."):
        importlib.import_module(name)
print(len(names))
"""


def _root(node: Node) -> str:
    """Return the directory that is the container's root."""
    return f"/proc/{node.runtime.process_status(_container(node))['Pid'].strip()}/root"


def _container(node: Node) -> str:
    assert isinstance(node.plugin, AsPod), "requires the plugin as a pod"
    return node.plugin.container_id()


def _files(node: Node) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of the image, without what the kubelet and the runtime mount over it."""
    root = _root(node)
    device = os.stat(root).st_dev
    for parent, names, files in os.walk(root):
        # A directory on the root's file system: proc, sys, dev and volumes are on others.
        names[:] = [name for name in names if os.lstat(os.path.join(parent, name)).st_dev == device]
        for name in files:
            path = os.path.join(parent, name)
            status = os.lstat(path)
            if status.st_dev == device and not stat.S_ISLNK(status.st_mode) and status.st_size:
                yield path.removeprefix(root), status


@item("The container has the plugin, Python and their libraries, and neither a shell nor test code nor anything else")
def content(node: Node) -> None:
    paths = {path for path, _ in _files(node)}
    assert len(paths) > 1000, f"only {len(paths)} files"
    unexpected = sorted(path for path in paths if not _EXPECTED.fullmatch(path))
    assert not unexpected, f"unexpected: {unexpected[:20]}"
    left_over = sorted(path for path in paths if _NOT_HERE.search(path))
    assert not left_over, f"to be left out: {left_over[:20]}"


@item("The container's only programs are aosp-plugin and Python; no file is set-uid or writable by others")
def programs(node: Node) -> None:
    runnable, risky = set(), []
    for path, status in _files(node):
        if status.st_mode & 0o111 and ".so" not in path:
            runnable.add(path)
        if status.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH | stat.S_IWGRP):
            risky.append(path)
    assert {re.sub(r"^/usr/bin/python3\.\d+$", "/opt/venv/bin/python", path) for path in runnable} == PROGRAMS, (
        f"{runnable}"
    )
    assert not risky, f"{risky}"


@item("Every module of the plugin, and every extension module of Python, can be imported in the container")
def modules(node: Node) -> None:
    count = int(node.runtime.execute(_container(node), "python", "-c", _IMPORT_ALL))
    assert count > 100, f"only {count} modules"
