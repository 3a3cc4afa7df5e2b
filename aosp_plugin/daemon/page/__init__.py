"""The web page: plain HTML, CSS and JavaScript that get all their data from ``/status``.

``index.html`` refers to the other files, and nothing is loaded from elsewhere. A file is read when it is requested.
"""

from __future__ import annotations

import hashlib
import pkgutil
from functools import partial
from typing import TYPE_CHECKING

from aosp_plugin.framework.service.http import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "page.css": "text/css; charset=utf-8",
    "connection.js": "text/javascript; charset=utf-8",
    "detail.js": "text/javascript; charset=utf-8",
    "main.js": "text/javascript; charset=utf-8",
    "map.js": "text/javascript; charset=utf-8",
    "resource.js": "text/javascript; charset=utf-8",
    "states.js": "text/javascript; charset=utf-8",
    "table.js": "text/javascript; charset=utf-8",
}


def routes() -> dict[str, Callable[[], Answer]]:
    """Return the routes of the page: ``index.html`` at ``/``, and the other files at ``/page/<name>``."""
    return {"/" if name == "index.html" else f"/page/{name}": partial(_file, name) for name in _TYPES}


def _file(name: str) -> Answer:
    content = pkgutil.get_data(__name__, name)  # importlib.resources would load zipfile and more
    if content is None:
        raise FileNotFoundError(f"{__name__} has no {name}")
    return Answer(_TYPES[name], content, tag=hashlib.sha256(content).hexdigest()[:16])
