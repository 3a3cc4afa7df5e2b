"""A stand-in for ``kubectl proxy``, to test ``kubectl phones`` without a cluster.

The directory in STAND_IN_KUBECTL has a file for each path of the API server: ``%2F`` for slashes, and the answer's
status, content type and body. Arguments and requests are appended to ``log``.
"""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

DIRECTORY = "STAND_IN_KUBECTL"


def answer(directory: Path, path: str, body: bytes, *, status: int = 200, kind: str = "text/plain") -> None:
    """Have the stand-in answer requests for a path, whatever their query."""
    head = json.dumps({"status": status, "kind": kind}).encode()
    (directory / urllib.parse.quote(path, safe="")).write_bytes(head + b"\n" + body)


def install(directory: Path) -> None:
    """Write the program ``kubectl`` into a directory for PATH."""
    program = directory / "kubectl"
    program.write_text(f"#!{sys.executable}\nimport runpy\nrunpy.run_path({__file__!r}, run_name='__main__')\n")
    program.chmod(0o755)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128  # otherwise 5, beyond which connections are refused


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        _log(self.path)
        file = Path(os.environ[DIRECTORY], urllib.parse.quote(self.path.partition("?")[0], safe=""))
        if not file.exists():
            self._send(404, "text/plain", b"not found")
            return
        head, _, body = file.read_bytes().partition(b"\n")
        given = json.loads(head)
        if given["status"] == 0:  # never
            time.sleep(600)
        self._send(given["status"], given["kind"], body)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...

    def address_string(self) -> str:
        return ""


def _log(line: str) -> None:
    with Path(os.environ[DIRECTORY], "log").open("a") as log:
        log.write(f"{line}\n")


def main() -> None:
    """Serve, as ``kubectl proxy --unix-socket=PATH`` does."""
    _log(" ".join([str(os.getpid()), *sys.argv[1:]]))
    if "--context=absent" in sys.argv:
        sys.stderr.write('error: context "absent" does not exist\n')
        sys.exit(1)
    (path,) = (word.partition("=")[2] for word in sys.argv if word.startswith("--unix-socket="))
    with _Server(path, _Handler) as server:
        sys.stdout.write(f"Starting to serve on {path}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
