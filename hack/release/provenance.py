"""The provenance: what the files of a release were made from, as an in-toto statement with SLSA's predicate.

It is not signed. SHA256SUMS covers it, and the release workflow signs SHA256SUMS.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hack.release.files import sha256

if TYPE_CHECKING:
    from pathlib import Path

    from hack.release.source import Project

NAME = "provenance.json"
MATERIALS = ("requirements.txt", "deploy/build-requirements.txt", "Dockerfile")

# URIs without a domain, because the project has none: of `make release`, and of a builder that is not known.
BUILD_TYPE = uuid.uuid5(uuid.NAMESPACE_OID, "aosp-device-plugin make release v1").urn
UNKNOWN_BUILDER = uuid.uuid5(uuid.NAMESPACE_OID, "aosp-device-plugin unknown builder").urn


def statement(project: Project, output: Path, image: str, source_url: str, builder: str) -> str:
    """Return the statement about all files that are in the release's directory already."""
    subjects = [{"name": path.name, "digest": {"sha256": sha256(path)}} for path in sorted(output.iterdir())]
    base = os.environ.get("BASE") or _default_base(project)
    parameters = {"version": project.version, "image": image, "base": base}
    definition = {
        "buildType": BUILD_TYPE,
        "externalParameters": parameters | ({"source": source_url} if source_url else {}),
        "resolvedDependencies": _dependencies(project, base, source_url),
    }
    finished = datetime.fromtimestamp(project.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    details = {
        "builder": {"id": builder or UNKNOWN_BUILDER},
        # The time of the commit, so that the statement is the same each time.
        "metadata": {"startedOn": finished, "finishedOn": finished},
    }
    content = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": definition, "runDetails": details},
    }
    return json.dumps(content, indent=2) + "\n"


def _dependencies(project: Project, base: str, source_url: str) -> list[dict[str, Any]]:
    commit: dict[str, Any] = {"name": "source", "digest": {"gitCommit": project.commit}}
    if source_url:
        commit["uri"] = f"git+{source_url}"
    if project.changed:
        commit["annotations"] = {"changed": list(project.changed)}
    found = [commit]
    name, _, digest = base.partition("@sha256:")
    if digest:
        found.append({"name": "base image", "uri": f"docker://{name}", "digest": {"sha256": digest}})
    return found + [{"name": path, "digest": {"sha256": sha256(project.root / path)}} for path in MATERIALS]


def _default_base(project: Project) -> str:
    dockerfile = (project.root / "Dockerfile").read_text(encoding="utf-8")
    found = re.search(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE)
    return found[1] if found else ""
