"""The web page: plain HTML, CSS and JavaScript that get all their data from ``/status``.

``index.html`` refers to the other files, and nothing is loaded from elsewhere. A file is read when it is requested.
"""

import hashlib
import os
import pkgutil
import posixpath
from collections.abc import Callable
from functools import partial

from aosp_plugin.framework.service.http import Answer

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_FILES = [name for name in os.listdir(os.path.dirname(__file__)) if name.endswith((".css", ".js", ".svg"))]


def routes() -> dict[str, Callable[[], Answer]]:
    """Return the routes of the page: ``index.html`` at ``/``, and the other files at ``/page/<name>``."""
    return {"/": partial(_file, "index.html"), **{f"/page/{name}": partial(_file, name) for name in _FILES}}


def _file(name: str) -> Answer:
    return tagged(_TYPES[posixpath.splitext(name)[1]], _content(name))


def _content(name: str) -> bytes:
    content = pkgutil.get_data(__name__, name)  # importlib.resources would load zipfile and more
    if content is None:
        raise FileNotFoundError(f"{__name__} has no {name}")
    return content


def tagged(content_type: str, content: bytes) -> Answer:
    """Return an answer with an entity tag, by which a client that has this content already does not get it again."""
    return Answer(content_type, content, tag=hashlib.sha256(content).hexdigest()[:16])
