"""What prevents the ResourceSlices from being as they should be, each problem by what it is about."""

from __future__ import annotations

import contextlib
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING

from aosp_plugin.framework.apiserver.errors import ApiError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOG = logging.getLogger(__name__)


class Problems:
    """Problems that last: each is logged when it begins, when it becomes another one, and when it ends."""

    def __init__(self) -> None:
        self._problems: Mapping[str, tuple[object, str]] = MappingProxyType({})

    @property
    def texts(self) -> list[str]:
        """All problems. May be read in any thread."""
        return [text for _, text in self._problems.values()]

    def set(self, about: str, text: str, kind: object = None, **extra: object) -> None:
        """Set the problem that concerns ``about``; empty if there is none.

        A problem of the same ``kind``, its text by default, is not logged again.
        """
        before_kind, before = self._problems.get(about, (None, ""))
        kind = text if kind is None else kind
        if text and kind != before_kind:
            LOG.warning("DRA driver has a problem", extra={"problem": text, **extra})
        elif before and not text:
            LOG.info("DRA driver no longer has the problem", extra={"problem": before})
        others = {other: problem for other, problem in self._problems.items() if other != about}
        self._problems = MappingProxyType({**others, about: (kind, text)} if text else others)

    def failed(self, purpose: str, error: ApiError, not_found: str = "") -> None:
        """Set the problem that a request failed; ``not_found`` is what an answer 404 means, if it is special.

        The same kind of answer is logged once, because its text may vary.
        """
        special = not_found if isinstance(error, NotFoundError) else ""
        kind = (type(error), error.status)
        self.set(purpose, special or f"{purpose} failed: {error}", kind, error=str(error))

    @contextlib.contextmanager
    def of(self, purpose: str, not_found: str = "") -> Iterator[None]:
        """Set or end the problem of the request inside the context, whose ApiError is raised."""
        try:
            yield
        except ApiError as error:
            self.failed(purpose, error, not_found)
            raise
        self.set(purpose, "")
