"""The content of the plugin's image, as it is in a running container."""

import os
import re
import stat
from collections.abc import Iterator
from typing import Final

from tests.e2e.kubelet.node import Node
from tests.e2e.kubelet.rights import plugin_pod

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

_RISKY: Final = stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH | stat.S_IWGRP

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


def _files(node: Node) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of the image, without what the kubelet and the runtime mount over it."""
    root = f"/proc/{node.runtime.process_status(plugin_pod(node).container_id())['Pid'].strip()}/root"
    device = os.stat(root).st_dev
    for parent, names, files in os.walk(root):
        # A directory on the root's file system: proc, sys, dev and volumes are on others.
        names[:] = [name for name in names if os.lstat(os.path.join(parent, name)).st_dev == device]
        for name in files:
            path = os.path.join(parent, name)
            status = os.lstat(path)
            if status.st_dev == device and not stat.S_ISLNK(status.st_mode) and status.st_size:
                yield path.removeprefix(root), status


def test_content(node: Node) -> None:
    """The container has the plugin, Python and their libraries, and neither a shell nor test code nor anything else."""
    paths = {path for path, _ in _files(node)}
    assert len(paths) > 1000
    assert [path for path in paths if not _EXPECTED.fullmatch(path)] == []
    assert [path for path in paths if _NOT_HERE.search(path)] == []


def test_programs(node: Node) -> None:
    """The container's only programs are aosp-plugin and Python; no file is set-uid or writable by others."""
    modes = {path: status.st_mode for path, status in _files(node)}
    runnable = [path for path, mode in modes.items() if mode & 0o111 and ".so" not in path]
    assert {re.sub(r"^/usr/bin/python3\.\d+$", "/opt/venv/bin/python", path) for path in runnable} == PROGRAMS
    assert [path for path, mode in modes.items() if mode & _RISKY] == []


def test_modules(node: Node) -> None:
    """Every module of the plugin, and every extension module of Python, can be imported in the container."""
    assert int(node.runtime.execute(plugin_pod(node).container_id(), "python", "-c", _IMPORT_ALL)) > 100
