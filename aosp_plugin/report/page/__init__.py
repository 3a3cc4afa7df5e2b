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

MANY = "many"
"""Number in the name of the icon for more than nine problems."""

_BADGE = (
    '<circle cx="22" cy="22" r="10" fill="#d01250"/><text x="22" y="27" text-anchor="middle" fill="#fff" '
    'font-family="sans-serif" font-weight="700" font-size="{size}">{text}</text></svg>'
)


def routes() -> dict[str, Callable[[], Answer]]:
    """Return the routes of the page: ``index.html`` at ``/``, and the other files at ``/page/<name>``.

    The icon of the page's tab has the number of problems: ``icon-1.svg`` to ``icon-9.svg``, and ``icon-many.svg``. A
    page could draw it itself only with a less strict content security policy.
    """
    files = {f"/page/{name}": partial(_file, name) for name in _FILES}
    icons = {f"/page/icon-{number}.svg": partial(_icon, str(number)) for number in (*range(1, 10), MANY)}
    return {"/": partial(_file, "index.html"), **files, **icons}


def _file(name: str) -> Answer:
    return _answer(name, _content(name))


def _icon(number: str) -> Answer:
    """Return the icon with a number of problems."""
    text, size = ("9+", 11) if number == MANY else (number, 15)
    badge = _BADGE.format(text=text, size=size).encode()
    return _answer("icon.svg", _content("icon.svg").replace(b"</svg>", badge))


def _content(name: str) -> bytes:
    content = pkgutil.get_data(__name__, name)  # importlib.resources would load zipfile and more
    if content is None:
        raise FileNotFoundError(f"{__name__} has no {name}")
    return content


def _answer(name: str, content: bytes) -> Answer:
    return tagged(_TYPES[posixpath.splitext(name)[1]], content)


def tagged(content_type: str, content: bytes) -> Answer:
    """Return an answer with an entity tag, by which a client that has this content already does not get it again."""
    return Answer(content_type, content, tag=hashlib.sha256(content).hexdigest()[:16])
