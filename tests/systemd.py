"""The socket on which systemd receives the notifications of a service."""

import asyncio
import contextlib
import socket


class Systemd:
    """The receiving socket."""

    def __init__(self, receiver: socket.socket) -> None:
        self.environment = {"NOTIFY_SOCKET": str(receiver.getsockname())}
        self._receiver = receiver

    async def receive(self) -> str:
        """Wait for the next message."""
        return (await asyncio.get_running_loop().sock_recv(self._receiver, 4096)).decode()

    def pending(self) -> list[str]:
        """Return the messages that have arrived."""
        messages = []
        with contextlib.suppress(BlockingIOError):
            while True:
                messages.append(self._receiver.recv(4096).decode())
        return messages
