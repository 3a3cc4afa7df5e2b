"""Item: the CDI spec that container runtimes take, according to the library with which they read specs."""

from __future__ import annotations

import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

from tests.e2e.deploy import parts
from tests.e2e.deploy.parts import run
from tests.e2e.kubelet.processes import Daemon
from tests.e2e.kubelet.waiting import until

DIRECTORIES: Final = ("etc/cdi", "var/run/cdi")
"""The directories of runtimes, the strongest last (pkg/cdi/spec-dirs.go, DefaultSpecDirs)."""
DEVICE: Final = "aosp.io/binder=aosp_binder0"


def one_spec() -> None:
    """The CDI library takes the spec of the configured directory, whatever a plugin before has left in the others."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for each in ("dev", "kubelet", *DIRECTORIES):
            (root / each).mkdir(parents=True)
        for name in ("aosp_binder0", "fuse"):
            os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        for cdi_dir, shared in (("var/run/cdi", []), ("etc/cdi", ["/dev/fuse"]), ("var/run/cdi", [])):
            _serve(root, cdi_dir, shared)


def _serve(root: Path, cdi_dir: str, shared_devices: list[str]) -> None:
    """Run a plugin until the library has the device as it is configured."""
    config = root / "config.yaml"
    keys: dict[str, Any] = {"device_list": ["envvar", "cdi-cri"], "shared_devices": shared_devices, "verify": "char"}
    config.write_text(yaml.safe_dump({"version": "v1", "host_root": str(root), "cdi_dir": f"/{cdi_dir}", **keys}))
    command = (sys.executable, "-m", "aosp_plugin", "serve", f"--config={config}", "--listen=")
    plugin = Daemon("plugin", [*command, f"--kubelet-dir={root}/kubelet"], root / "log")
    plugin.start()
    try:
        expected = str(root / cdi_dir / "aosp.io_binder.json"), {"/dev/aosp_binder0", *shared_devices}
        until(lambda: _known(root) == expected, f"the library takes the spec of {cdi_dir}", seconds=20)
    finally:
        plugin.end()


def _known(root: Path) -> tuple[str, set[str]]:
    """Return the path of the spec that the library takes, and the nodes that a container gets by it."""
    known = json.loads(run(parts.cdi_reader(), *(str(root / each) for each in DIRECTORIES), "--", DEVICE))
    if DEVICE not in known:
        return "", set()
    spec = known[DEVICE]["spec"]
    common = json.loads(Path(spec).read_text())["containerEdits"].get("deviceNodes", [])
    nodes = [*known[DEVICE]["edits"].get("deviceNodes", []), *common]
    return spec, {node["path"] for node in nodes}


ITEMS = (one_spec,)
