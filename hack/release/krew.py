"""``kubectl phones`` as a single file, and what krew installs it with."""

from __future__ import annotations

import gzip
import string
from typing import TYPE_CHECKING, Final

from hack.files import sha256, tar, zipapp

if TYPE_CHECKING:
    from pathlib import Path

    from hack.release.source import Project

_MAIN: Final = b"import sys\n\nfrom kubectl_phones.__main__ import main\n\nsys.exit(main())\n"


def build(project: Project, output: Path, source_url: str) -> None:
    """Write an archive with the program, and its manifest if there is a repository to fetch the archive from."""
    directory = project.root / "kubectl_phones"
    modules = {f"kubectl_phones/{path.name}": path.read_bytes() for path in directory.glob("*.py")}
    program = zipapp({"__main__.py": _MAIN, **modules}, project.epoch)
    archive = output / f"kubectl-phones-{project.version}-krew.tar.gz"
    files = {"kubectl-phones": program, "LICENSE": (project.root / "LICENSE").read_bytes()}
    archive.write_bytes(gzip.compress(tar(files, project.epoch), mtime=project.epoch))
    if source_url:
        values = {"version": project.version, "archive": archive.name, "sha256": sha256(archive)}
        manifest = string.Template((directory / "krew.yaml").read_text(encoding="utf-8"))
        (output / "phones.yaml").write_text(manifest.substitute(values, source_url=source_url), encoding="utf-8")
