"""The ResourceClaims of a driver as the API server has them: whether prepared ones are still needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from aosp_plugin.framework.apiserver.protocol import ApiError, ApiUnavailableError, NotFoundError
from aosp_plugin.framework.dra.claim_records import Claim, ClaimRecord, ClaimReference, is_needed
from aosp_plugin.framework.runtime import Runtime


class _Gone(NamedTuple):
    """A claim that the API server does not have; of a damaged record, without it."""

    record: ClaimRecord | None
    since: float
    """The time of the first answer, in seconds of the clock."""
    is_ended: bool = False
    """Whether a later answer was the same."""


class ApiClaims:
    """The claims of one driver as the API server has them. For one event loop."""

    def __init__(self, driver: str, get_claim: Callable[[str, str], Awaitable[Claim]], runtime: Runtime) -> None:
        """``get_claim`` returns the claim with a namespace and name."""
        self.get = get_claim
        self._driver = driver
        self._timings = runtime.timings
        self._clock = runtime.clock
        self._gone: dict[str, _Gone] = {}

    @property
    def gone(self) -> frozenset[str]:
        """The claims that the API server did not have, as in ``ended``."""
        return frozenset(self._gone)

    @property
    def ended(self) -> Mapping[str, ClaimRecord | None]:
        """Claims that have been gone for long enough, by UID; those of damaged records by file name."""
        return {key: gone.record for key, gone in self._gone.items() if gone.is_ended}

    async def find(self, reference: ClaimReference, timeout: float) -> Claim | None:
        """Return a claim within ``timeout`` seconds; None if it does not exist.

        An answer 404 that is not the API's, for example of a proxy, is an error. Raises ApiError.
        """
        try:
            async with asyncio.timeout(timeout):  # wait_for may lose a cancellation in Python 3.11
                return await self.get(reference.namespace, reference.name)
        except TimeoutError as error:
            raise ApiUnavailableError(None, f"no answer after {timeout:g} s") from error
        except NotFoundError as error:
            if error.reason != "NotFound":
                raise
            return None

    async def ask(self, record: ClaimRecord, timeout: float) -> bool | None:
        """Ask the API server whether a prepared claim needs its devices; None without an answer in ``timeout`` seconds.

        A claim that is no longer allocated, or has other devices now, does not need the devices of its record. A claim
        that the API server refuses to show may need them. A claim that has not needed them for
        ``Timings.claim_gone`` seconds has ended.
        """
        try:
            claim = await self.find(record.reference, timeout)
        except ApiError as error:
            self.keep(record.uid)
            return None if error.transient else True
        if claim is not None and is_needed(record, claim):
            self.keep(record.uid)
            return True
        if record.driver == self._driver:  # the other driver releases its claims
            self.not_needed(record.uid, record)
        return False

    def not_needed(self, key: str, record: ClaimRecord | None) -> None:
        """Note that the API server does not have a claim."""
        now, known = self._clock(), self._gone.get(key)
        if known is None or known.record != record:
            self._gone[key] = _Gone(record, now)
        elif now - known.since >= self._timings.claim_gone:
            self._gone[key] = known._replace(is_ended=True)

    def keep(self, uid: str) -> None:
        """Forget that a claim was gone, so that no repair releases it."""
        self._gone.pop(uid, None)

    def forget_except(self, known: Mapping[str, ClaimRecord | None]) -> None:
        """Forget the claims that have other records now, or none."""
        self._gone = {key: gone for key, gone in self._gone.items() if key in known and known[key] == gone.record}
