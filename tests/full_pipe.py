"""A pipe that nobody reads, as the standard error of a process whose log driver has stalled."""

import contextlib
import os
import select
from typing import Self

from tests.support import PATIENCE


class FullPipe:
    """A pipe that is full until ``read_until`` is called. For use as a context."""

    def __init__(self) -> None:
        """Fill it with empty lines."""
        self._reader, self.writer = os.pipe()
        """``writer`` is the end for the process."""
        self._text = ""
        os.set_blocking(self.writer, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(self.writer, b"\n"):
                pass
        os.set_blocking(self.writer, True)

    def __enter__(self) -> Self:
        """Return the pipe."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close both ends."""
        os.close(self.writer)
        os.close(self._reader)

    def read_until(self, text: str) -> str:
        """Read until there is a line with ``text``, and return all lines."""
        while text not in self._text:
            readable, _, _ = select.select([self._reader], [], [], PATIENCE)
            assert readable, self._text
            self._text += os.read(self._reader, 65536).decode()
        return self._text.strip()
