"""The records of a driver's claims: in memory, in the checkpoint, and in the CDI specs that carry them."""

from __future__ import annotations

import contextlib
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING

from aosp_plugin.framework.dra.checkpoint import Checkpoint
from aosp_plugin.framework.dra.claim_spec import ClaimSpecs
from aosp_plugin.framework.dra.records import BOOT_ID_FILE, boot_id
from aosp_plugin.framework.dra.state_lock import StateLock
from aosp_plugin.framework.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aosp_plugin.framework.dra.observer import Repaired
    from aosp_plugin.framework.dra.records import ClaimRecord

LOG = logging.getLogger(__name__)


class ClaimState:
    """The records of one driver. To be used in the worker thread, except for ``records``."""

    def __init__(
        self,
        driver: str,
        *,
        state_directory: str,
        cdi_directory: str,
        changed: Callable[[], None] = lambda: None,
        repaired: Callable[[Repaired, bool], None] = lambda _kind, _ok: None,
        boot_id_file: str = BOOT_ID_FILE,
    ) -> None:
        """Directories are paths of this process, and created when they are needed. The host is not accessed.

        ``changed`` is called after each change of ``records``, and ``repaired`` after each repair, with whether it
        succeeded; both in the worker thread.
        """
        self._driver = driver
        self.state_directory = state_directory
        self.cdi_directory = cdi_directory
        self._changed = changed
        self.repaired = repaired
        self._boot_id_file = boot_id_file
        self._lock = StateLock(state_directory)
        self._files: tuple[Checkpoint, ClaimSpecs] | None = None
        self.records: Mapping[str, ClaimRecord] = MappingProxyType({})
        """The claims by UID, as they were last read or written; replaced by a single assignment."""

    @property
    def specs(self) -> ClaimSpecs:
        """The CDI specs. Raises OSError if the boot ID cannot be read."""
        return self._opened()[1]

    @contextlib.contextmanager
    def locked(self, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Exclude other processes inside the context, with ``records`` as they have left them.

        ``check`` is called when the lock is held, and may raise an error. Raises OSError and CheckpointError.
        """
        with self._lock.held():
            check()
            try:
                self._load()
            except (OSError, PluginError):
                self.repaired("checkpoint", False)  # noqa: FBT003 - a callback
                raise
            yield

    def put(self, record: ClaimRecord) -> None:
        """Add or replace the record of a claim. Raises CheckpointError."""
        self._save({**self.records, record.uid: record})

    def drop(self, uid: str) -> None:
        """Remove the record of a claim. Raises CheckpointError."""
        self._save({other: record for other, record in self.records.items() if other != uid})

    def sweep(self) -> None:
        """Remove temporary files of processes that were killed: none is in use, because the lock is held."""
        with contextlib.suppress(OSError):  # what matters fails, too, and is reported
            self._opened()[0].sweep()
            self.specs.sweep()

    def _opened(self) -> tuple[Checkpoint, ClaimSpecs]:
        if self._files is None:
            boot = boot_id(self._boot_id_file)
            checkpoint = Checkpoint(self.state_directory, boot)
            self._files = (checkpoint, ClaimSpecs(self.cdi_directory, self._driver, boot))
        return self._files

    def _load(self) -> None:
        """Read the records; recover them from memory and specs if the checkpoint is lost."""
        checkpoint = self._opened()[0]
        claims, source = checkpoint.load()
        if source in {"missing", "rejected"}:
            claims = self._recovered()
            if claims:
                checkpoint.save(claims)
                fields = {"path": checkpoint.path, "claims": len(claims)}
                LOG.warning("checkpoint of the claims lost, written again", extra=fields)
                self.repaired("checkpoint", True)  # noqa: FBT003 - a callback
        self._set_records(claims)

    def _recovered(self) -> Mapping[str, ClaimRecord]:
        """Return the records according to specs and memory.

        The specs come first: another process may have changed the claims since this one read the records.
        """
        carried = {uid: record for uid in self.specs.uids() if (record := self.specs.carried(uid)) is not None}
        recovered: dict[str, ClaimRecord] = {}
        taken: set[str] = set()
        for record in [*carried.values(), *self.records.values()]:
            if record.uid not in recovered and taken.isdisjoint(record.ids):
                known = self.records.get(record.uid)
                recovered[record.uid] = known if known is not None and known.ids == record.ids else record
                taken.update(record.ids)
        return recovered

    def _save(self, claims: Mapping[str, ClaimRecord]) -> None:
        self._opened()[0].save(claims)
        self._set_records(claims)

    def _set_records(self, claims: Mapping[str, ClaimRecord]) -> None:
        if claims == self.records:
            return
        self.records = MappingProxyType(dict(claims))
        self._changed()
