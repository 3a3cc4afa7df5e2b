"""A problem that lasts: it is logged when it begins, when it becomes another one, and when it ends."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aosp_plugin.framework.apiserver.errors import ApiError

LOG = logging.getLogger(__name__)


class LastingProblem:
    """Why something has not been possible since its first failure."""

    def __init__(self, purpose: str = "") -> None:
        """``purpose`` is what is tried, for logs and texts, such as "watch of ResourceSlices"."""
        self._purpose = purpose
        self._kind: object = None
        self._text = ""

    @property
    def text(self) -> str:
        """The problem; empty if there is none. May be read in any thread."""
        return self._text

    def failed(self, error: ApiError, hint: str = "") -> None:
        """Handle a request that failed. The same kind of answer is logged once, because its text may vary."""
        self.begins(f"{self._purpose} failed: {hint or error}", (type(error), error.status, hint), error=str(error))

    def begins(self, text: str, kind: object = None, **extra: object) -> None:
        """Handle a failure; ``kind`` is what it has in common with repetitions, its text by default."""
        kind = text if kind is None else kind
        if kind != self._kind:
            LOG.warning("DRA driver has a problem", extra={"problem": text, **extra})
        self._kind, self._text = kind, text

    def ends(self) -> None:
        """Handle a success."""
        if self._text:
            LOG.info("DRA driver no longer has the problem", extra={"problem": self._text})
        self._kind, self._text = None, ""
