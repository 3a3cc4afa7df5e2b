"""Lists of the API server by ``kubectl get --raw``: kubectl finds the cluster and authenticates, as for any command."""

import json
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

PAGE: Final = 2000
"""Objects of a request. A pod is some 6 kB of JSON, and many times that when it is decoded."""
_ITEMS: Final = '"items":['
"""The text before the objects of a page. The API server writes JSON without spaces, and a list's metadata first."""

_MAX_DEPTH: Final = 50
"""More than the depth of anything that is read of an object."""
_NESTING: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]')
"""A string, or the beginning or end of an object or a list."""


class KubectlError(Exception):
    """There is no kubectl, or it has failed; then the text is kubectl's own, such as Error from server (Forbidden)."""


class Kubectl:
    """Runs kubectl. For any thread."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        """Use options such as ``--context=NAME``. Raises KubectlError if there is no kubectl."""
        program = shutil.which("kubectl")
        if program is None:
            raise KubectlError("kubectl is not in PATH")
        self._program = program
        self._options = options

    def list(self, path: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the objects of a collection, which are read page by page. Raises KubectlError.

        The next page is read while the caller uses the objects of the present one, which are decoded one at a time.
        """
        page: str | None = self._get(path, {**query, "limit": PAGE})
        with ThreadPoolExecutor(1) as executor:
            while page is not None:
                head, _, items = page.partition(_ITEMS)
                metadata = json.loads(f"{head}{_ITEMS}]}}")["metadata"]
                more = {**query, "limit": PAGE, "continue": metadata.get("continue")}
                following = executor.submit(self._get, path, more) if more["continue"] else None
                yield from _objects(items)
                page = following.result() if following else None

    def _get(self, path: str, query: Mapping[str, Any]) -> str:
        url = f"{path}?{urllib.parse.urlencode(query, quote_via=urllib.parse.quote)}"
        command = [self._program, "get", "--raw", url, *self._options]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603 - the user's kubectl
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise KubectlError(lines[-1] if lines else f"kubectl: exit code {done.returncode}")
        return done.stdout.decode()


def _objects(items: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of the rest of a page, such as ``{},{}]}``."""
    decoder, at = json.JSONDecoder(), 0
    while items[at] != "]":
        at += items[at] == ","
        try:
            item, at = decoder.raw_decode(items, at)
        except RecursionError:
            item, at = _shallow(items, at)
        yield item


def _shallow(items: str, at: int) -> tuple[dict[str, Any], int]:
    """Return the object at an index without what is nested too deeply in it, and the index of its end.

    The API server accepts 5,000 lists in each other as parameters of a claim: no user must hide the claims of others.
    """
    kept, depth = "", 0
    for token in _NESTING.finditer(items, at):
        if token[0] in ("{", "["):
            depth += 1
            if depth == _MAX_DEPTH:
                kept += f"{items[at : token.start()]}null"
        elif token[0] in ("}", "]"):
            depth -= 1
            if depth == _MAX_DEPTH - 1:
                at = token.end()
            elif not depth:
                return json.loads(kept + items[at : token.end()]), token.end()
    raise AssertionError("an object without an end")
