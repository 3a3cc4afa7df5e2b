"""Lists of the API server by ``kubectl get --raw``: kubectl finds the cluster and authenticates, as for any command."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PAGE: Final = 2000
"""Objects of a request. A pod is some 6 kB of JSON, and many times that in memory."""


class KubectlError(Exception):
    """There is no kubectl, or it has failed; the text is its own: Error from server (Forbidden): nodes is forbidden."""


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
        """Yield the objects of a collection, which are read page by page. Raises KubectlError."""
        following = ""
        while True:
            page = self._get(path, {**query, "limit": str(PAGE)} | ({"continue": following} if following else {}))
            yield from page["items"]
            following = page["metadata"].get("continue", "")
            if not following:
                return

    def _get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        url = f"{path}?{urllib.parse.urlencode(query, quote_via=urllib.parse.quote)}"
        command = [self._program, "get", "--raw", url, *self._options]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603 - the user's kubectl
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise KubectlError(lines[-1] if lines else f"kubectl: exit code {done.returncode}")
        page: dict[str, Any] = json.loads(done.stdout)
        return page
