"""Run commands in a guest: a server there, and a program on the host that stands for the command.

``remote.py ADDRESS WORD...`` passes its standard input and SIGTERM to the command, prints what the command prints, and
ends with the command's exit code. If it is killed, the server kills the command. So a daemon of the guest is controlled
like one of the host.

Only the standard library is used, because each command starts this program again.
"""

import json
import os
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from typing import IO, Final

PORT: Final = 8700
GONE: Final = 255
"""The exit code if the guest ends before the command."""
_HEADER: Final = struct.Struct("!cI")
_OUTPUT, _INPUT, _SIGNAL, _EXIT = b"o", b"i", b"s", b"x"
_SIZE: Final = 65536
_DRAIN: Final = 1.0
"""Seconds for output that is still in the pipe when the command has ended: its children may hold the pipe open."""


def main(address: str, *words: str) -> int:
    """Run a command in the guest, and return its exit code."""
    with socket.create_connection((address, PORT), timeout=30) as connection:
        connection.settimeout(None)
        # A guest without power sends nothing: ask it every few seconds whether it is there.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 12)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        _send(connection, _INPUT, json.dumps(words).encode())
        signal.signal(signal.SIGTERM, lambda number, _: _send(connection, _SIGNAL, str(int(number)).encode()))
        threading.Thread(target=_pass_input, args=(connection,), daemon=True).start()
        try:
            while True:
                kind, content = _receive(connection)
                if kind == _OUTPUT:
                    sys.stdout.buffer.write(content)
                    sys.stdout.buffer.flush()
                else:
                    return int(content)
        except OSError:
            return GONE


def _pass_input(connection: socket.socket) -> None:
    while content := os.read(sys.stdin.fileno(), _SIZE):
        _send(connection, _INPUT, content)
    _send(connection, _INPUT, b"")


class Server(socketserver.ThreadingTCPServer):
    """The server in the guest."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: str) -> None:
        """Listen on the guest's address."""
        super().__init__((address, PORT), _Command)


class _Command(socketserver.BaseRequestHandler):
    """One command, from its start to its end."""

    def handle(self) -> None:
        words = json.loads(_receive(self.request)[1])
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        except OSError as error:
            _send(self.request, _OUTPUT, f"{error}\n".encode())
            _send(self.request, _EXIT, b"127")
            return
        assert process.stdin is not None
        assert process.stdout is not None
        threading.Thread(target=self._pass_input, args=(process, process.stdin), daemon=True).start()
        output = threading.Thread(target=self._pass_output, args=(process.stdout,), daemon=True)
        output.start()
        code = process.wait()
        output.join(_DRAIN)
        _send(self.request, _EXIT, str(code if code >= 0 else 128 - code).encode())

    def _pass_input(self, process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
        """Pass input and signals from the host to the command, and kill it if the host's program is gone."""
        try:
            while True:
                kind, content = _receive(self.request)
                if kind == _SIGNAL:
                    process.send_signal(int(content))
                elif content:
                    pipe.write(content)
                    pipe.flush()
                else:
                    pipe.close()
        except OSError:
            process.kill()

    def _pass_output(self, pipe: IO[bytes]) -> None:
        try:
            while content := os.read(pipe.fileno(), _SIZE):
                _send(self.request, _OUTPUT, content)
        except OSError:
            return


def _send(connection: socket.socket, kind: bytes, content: bytes) -> None:
    connection.sendall(_HEADER.pack(kind, len(content)) + content)


def _receive(connection: socket.socket) -> tuple[bytes, bytes]:
    kind, size = _HEADER.unpack(_exactly(connection, _HEADER.size))
    return kind, _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise ConnectionResetError("the other side is gone")
        content += part
    return content


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
