"""The CDI spec that container runtimes take, according to the library with which they read specs."""

import json
import os
import stat
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.e2e.common.processes import Daemon
from tests.e2e.common.waiting import until
from tests.e2e.deploy.conftest import Tool

pytestmark = pytest.mark.core

DIRECTORIES: Final = ("etc/cdi", "var/run/cdi")
"""The directories of runtimes, the strongest last (pkg/cdi/spec-dirs.go, DefaultSpecDirs)."""
DEVICE: Final = "aosp.io/binder=aosp_binder0"


def test_the_cdi_library_takes_the_spec_of_the_configured_directory(cdi_reader: Tool, short_directory: Path) -> None:
    """Whatever a plugin before has left in the others."""
    for each in ("dev", "kubelet", *DIRECTORIES):
        (short_directory / each).mkdir(parents=True)
    for name in ("aosp_binder0", "fuse"):
        os.mknod(short_directory / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    config = short_directory / "config.yaml"
    command = (sys.executable, "-m", "aosp_plugin", "serve", f"--config={config}", "--listen=")
    for cdi_dir, shared in (("var/run/cdi", []), ("etc/cdi", ["/dev/fuse"]), ("var/run/cdi", [])):
        values: dict[str, Any] = {"version": "v1", "host_root": str(short_directory), "cdi_dir": f"/{cdi_dir}"}
        values |= {"device_list": ["envvar", "cdi-cri"], "shared_devices": shared, "verify": "char"}
        config.write_text(yaml.safe_dump(values))
        plugin = Daemon("plugin", [*command, f"--kubelet-dir={short_directory}/kubelet"], short_directory / "log")
        plugin.start()
        expected = str(short_directory / cdi_dir / "aosp.io_binder.json"), {"/dev/aosp_binder0", *shared}
        try:
            until(partial(_takes, cdi_reader, short_directory, expected), f"the spec in {cdi_dir}", seconds=20)
        finally:
            plugin.end()


def _takes(cdi_reader: Tool, root: Path, expected: tuple[str, set[str]]) -> bool:
    """Check the path of the spec that the library takes, and the nodes that a container gets by it."""
    found = json.loads(cdi_reader(*(str(root / each) for each in DIRECTORIES), "--", DEVICE))[DEVICE]
    common = json.loads(Path(found["spec"]).read_text())["containerEdits"].get("deviceNodes", [])
    nodes = {node["path"] for node in (*found["edits"].get("deviceNodes", []), *common)}
    assert (found["spec"], nodes) == expected, f"{found['spec']}: {nodes}"
    return True
