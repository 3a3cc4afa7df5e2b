"""Links of documents that are read outside the repository: release notes, and README.md on a package index."""

from __future__ import annotations

import posixpath
import re

_LINK = re.compile(r"(?P<image>!?)(?P<text>\[[^\]]*\]\()(?!\w+:|#)(?P<path>[^)\s]+)\)")


def absolute(text: str, source_url: str, tag: str, directory: str = ".") -> str:
    """Return a document in a directory of the repository with links to the files of a tag, if there is a repository."""
    if not source_url:
        return text

    def replace(found: re.Match[str]) -> str:
        kind = "raw" if found["image"] else "blob"
        path = posixpath.normpath(f"{directory}/{found['path']}")
        return f"{found['image']}{found['text']}{source_url}/{kind}/{tag}/{path})"

    return _LINK.sub(replace, text)
