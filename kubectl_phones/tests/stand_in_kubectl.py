"""A stand-in for kubectl: ``kubectl get --raw PATH?QUERY``, to test ``kubectl phones`` without a cluster.

The directory in STAND_IN_KUBECTL has a file for each path of the API server, with ``%2F`` for slashes: a JSON list of
objects, which is answered page by page, or a text, which is an error of kubectl. Arguments are appended to ``log``.

The text ``NESTED`` in an object is answered as a list in 5,000 others, which the API server accepts as parameters.
"""

import json
import os
import sys
import urllib.parse
from pathlib import Path

DIRECTORY = "STAND_IN_KUBECTL"
NESTED = "<nested>"
NOT_FOUND = "Error from server (NotFound): the server could not find the requested resource"


def answer(directory: Path, path: str, content: object) -> None:
    """Have the stand-in answer requests for a path: a list of objects, or the text of an error."""
    (directory / urllib.parse.quote(path, safe="")).write_text(json.dumps(content))


def install(directory: Path) -> None:
    """Write the program ``kubectl`` into a directory for PATH."""
    program = directory / "kubectl"
    program.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({__file__!r}, run_name='__main__')\n")
    program.chmod(0o755)


def main() -> None:
    """Answer one request."""
    directory = Path(os.environ[DIRECTORY])
    with (directory / "log").open("a") as log:
        log.write(f"{' '.join(sys.argv[1:])}\n")
    path, _, query = sys.argv[3].partition("?")
    file = directory / urllib.parse.quote(path, safe="")
    content = json.loads(file.read_text()) if file.exists() else NOT_FOUND
    if isinstance(content, str):
        sys.exit(content)
    values = dict(urllib.parse.parse_qsl(query))
    start, limit = int(values.get("continue", "0")), int(values["limit"])
    following = {"continue": str(start + limit)} if start + limit < len(content) else {}
    page = {"kind": "List", "metadata": following, "items": content[start : start + limit]}
    sys.stdout.write(json.dumps(page, separators=(",", ":")).replace(f'"{NESTED}"', 5000 * "[" + 5000 * "]"))


if __name__ == "__main__":
    main()
