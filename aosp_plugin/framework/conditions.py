"""Conditions: values that say what is wrong now. Components report them; logs, probes and reports read them.

Readers decide by the kind of a condition; its texts are for people alone. The kinds of the framework are below; a
program adds its own.
"""

import enum
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, NamedTuple

from aosp_plugin.framework.service.logs import milliseconds

LOG = logging.getLogger(__name__)


class Severity(enum.StrEnum):
    """How urgent a condition is."""

    ERROR = "error"
    """Pods do not get devices, or not only their own."""
    WARNING = "warning"
    """Some devices, or some of what the plugin shows, cannot be used."""
    NOTICE = "notice"
    """Nothing is lost; something is slower or less certain than usual."""


class Kind(NamedTuple):
    """A kind of condition. Several kinds with the same name differ in what the log says."""

    name: str
    """One word, for programs."""
    title: str
    """The fault in a few words; for devices, the rest of a sentence that begins with their number."""
    action: str
    """The consequences and the first remedy. The page is often served where the documents are not at hand."""
    alert: str = ""
    """The name of the alert, without the prefix of the program. It is a heading in the program's runbook."""
    severity: Severity = Severity.WARNING
    begins: str = ""
    """The log message when a condition begins, or its detail changes; empty if another message says so."""
    ends: str = ""
    """The log message, of the level info, when a condition ends; empty if another message says so."""
    level: int = logging.WARNING
    """The level of ``begins``: ERROR needs a person, WARNING if the condition lasts, and INFO is expected.

    It does not follow from ``severity``, which says what pods lose: a NOTICE that a person can remedy is a WARNING."""
    heading: str = ""
    """The fragment of the heading in the runbook, if it is not the alert's."""

    @property
    def blocks(self) -> bool:
        """Whether pods cannot get their devices, so that the resource is not ready."""
        return self.severity is Severity.ERROR


NOT_REGISTERED: Final = Kind(
    "not-registered",
    "Not registered with the kubelet",
    "New pods get no devices; running pods keep theirs. On the node: systemctl status kubelet containerd.",
    "PluginNotRegistered",
    Severity.ERROR,
)
WAITING_FOR_KUBELET: Final = NOT_REGISTERED._replace(begins="waiting for kubelet")
REGISTRATION_FAILED: Final = NOT_REGISTERED._replace(begins="registration failed, retrying")
CONNECTION_LOST: Final = NOT_REGISTERED._replace(begins="connection to kubelet lost, re-registering")

KUBELET_DIRECTORY_HANGS: Final = Kind(
    "kubelet-directory-hangs",
    "The kubelet's directory hangs",
    "Running pods keep their devices. The plugin cannot register again until the file system answers.",
    "PluginNotRegistered",
    Severity.ERROR,
    begins="kubelet directory is hanging",
    ends="kubelet directory is no longer hanging",
    level=logging.ERROR,
)
KUBELET_DISAGREES: Final = Kind(
    "kubelet-disagrees",
    "The kubelet has fewer devices than the plugin published",
    "Pods are rejected although devices are free. The plugin registers again; if that does not help, look for a "
    "second plugin of the resource, and restart the kubelet.",
    "PluginKubeletLacksDevices",
    Severity.ERROR,
    begins="kubelet has fewer devices than published",
    ends="kubelet has all devices again",
)
"""In two answers of the kubelet in a row. It lasts until an answer has all devices."""
ALLOCATIONS_UNKNOWN: Final = Kind(
    "allocations-unknown",
    "Which pod has which device is unknown",
    "The kubelet's podresources API does not answer: check the kubelet, and the mount of pod_resources_socket.",
    begins="pods of the devices are unknown",
    ends="pods of the devices are known again",
    heading="unknown-allocations",
)
KUBELET_NOT_COMPARED: Final = Kind(
    "kubelet-not-compared",
    "How many devices the kubelet has is unknown",
    "A kubelet that has lost devices is not noticed. Check the kubelet, and the mount of its podresources socket.",
    severity=Severity.NOTICE,
    heading="unknown-allocations",
    begins="devices of the kubelet are unknown",
    ends="devices of the kubelet are known again",
)

SCAN_FAILED: Final = Kind(
    "outdated",
    "The device list may be out of date",
    "The kubelet keeps the last list. Check for a hanging file system, a full disk or missing rights.",
    "PluginScansFailing",
    Severity.ERROR,
    begins="device scan failed, retrying",
    ends="device scan recovered",
    level=logging.ERROR,
)
SCAN_HANGS: Final = SCAN_FAILED._replace(begins="device scan is hanging", ends="device scan is no longer hanging")
HOST_HANGS: Final = SCAN_FAILED._replace(begins="call on the host is hanging", ends="call on the host has ended")
"""A call that is not a scan, and for which the scans wait."""
UPDATE_FAILED: Final = Kind(
    "host-not-updated",
    "What the devices require on the host is not as it should be",
    "The device list is current. Check for a full or read-only disk, a missing right or a hanging file system.",
    "PluginHostUpdateFailing",
    Severity.ERROR,
    begins="host update failed, retrying",
    ends="host update recovered",
    level=logging.ERROR,
)
UPDATE_HANGS: Final = UPDATE_FAILED._replace(begins="host update is hanging", ends="host update is no longer hanging")
TRUNCATED: Final = Kind(
    "truncated",
    "not offered: the kubelet's message limit of 4 MiB is reached",
    "Use shorter device names or fewer devices in one resource.",
    "PluginDevicesMissing",
    Severity.ERROR,
    begins="device list truncated at the kubelet's 4 MiB limit",
    ends="device list no longer truncated",
    level=logging.ERROR,
)
POLLING: Final = Kind(
    "polling",
    "File changes are detected by polling, because inotify is unavailable",
    "Raise fs.inotify.max_user_instances and fs.inotify.max_user_watches. "
    "Until then, a kubelet or containerd that ends may not start again.",
    severity=Severity.NOTICE,
    heading="polling",
    begins="inotify unavailable, falling back to polling",
    ends="inotify available again",
)

SECOND_PLUGIN: Final = Kind(
    "second-plugin",
    "Another plugin serves the same resource",
    "The kubelet uses the one that registered last. Outside a rolling update, remove one of the two.",
    "PluginSecondPlugin",
    begins="another plugin of the resource is running",
    ends="no other plugin of the resource is running",
)
OVERRIDDEN: Final = Kind(
    "overridden",
    "A plugin of the resource that registered later has taken over",
    "This one sends no lists and leaves the host alone until the later one ends.",
    "PluginSecondPlugin",
    Severity.NOTICE,
    begins="later plugin of the resource has taken over",
    level=logging.INFO,
)

WITHHELD: Final = Kind(
    "withheld",
    "The DRA driver withholds its devices",
    "A device plugin offers the same resource on this node. Run only one of the two on a node.",
    "PluginSecondPlugin",
    Severity.ERROR,
    begins="devices of the DRA driver withheld",
    ends="devices of the DRA driver published again",
    level=logging.INFO,
)
SLICES_MISSING: Final = Kind(
    "slices-missing",
    "The API server does not have all ResourceSlices of this node",
    "Pods may not get the free devices. Check the network to the API server, and the plugin's ClusterRole.",
    "PluginSlicesMissing",
    Severity.ERROR,
)
"""The API server has not confirmed all ResourceSlices yet."""
SLICES_FAILING: Final = SLICES_MISSING._replace(
    begins="DRA driver has a problem", ends="DRA driver no longer has the problem"
)
API_SERVER_FAILING: Final = Kind(
    "api-server-failing",
    "Requests to the API server fail",
    "The ResourceSlices are complete, and stay. New claims may wait. Check the API server, and the plugin's "
    "ClusterRole.",
    "PluginApiRequestsFailing",
    begins="DRA driver has a problem",
    ends="DRA driver no longer has the problem",
)
SLICES_FULL: Final = TRUNCATED._replace(
    begins="DRA driver has a problem", ends="DRA driver no longer has the problem", level=logging.WARNING
)
CLAIMS_FAILING: Final = Kind(
    "claims-failing",
    "No claim can be prepared or repaired",
    "New pods with claims wait. Check for a full or read-only disk; the plugin retries.",
    "PluginClaimPreparesFailing",
    Severity.ERROR,
    begins="claim reconciliation failed, retrying",
    ends="claim reconciliation recovered",
    level=logging.ERROR,
)
CLAIMS_NOT_REPAIRED: Final = Kind(
    "claims-not-repaired",
    "Claims cannot be prepared in time, repaired or released",
    "Their pods wait. The plugin retries; its log has the cause for each claim.",
    "PluginClaimRepairsFailing",
    begins="claim reconciliation failed, retrying",
    ends="claim reconciliation recovered",
    level=logging.ERROR,
)
CLAIM_SLOW: Final = CLAIMS_NOT_REPAIRED._replace(begins="", ends="")
CLAIMS_UNSERVED: Final = Kind(
    "claims-unserved",
    "Pods have devices by claims of a former configuration, and cannot end",
    "Nobody else gets these devices. Configure what the message names as before until these pods have ended, then "
    "change it again.",
    heading="claims-of-a-former-configuration",
    begins="claims of a former configuration cannot be released",
    ends="no claims of a former configuration are left",
)
CREDENTIALS_UNAVAILABLE: Final = Kind(
    "credentials-unavailable",
    "The token or the certificates for the API server cannot be read",
    "Requests fail when the last token has expired. Mount the service account's token and ca.crt.",
    "PluginApiRequestsFailing",
    begins="credentials of the API server are unavailable",
    ends="credentials of the API server recovered",
    level=logging.ERROR,
)


class Condition(NamedTuple):
    """A fault that lasts."""

    kind: Kind
    detail: str
    """The cause in a sentence, for people."""
    subject: str = ""
    """The path, ``claim UID`` or other part that it concerns; empty for the whole resource or process."""
    fields: Mapping[str, object] = {}
    """The fields of the log record."""
    since: float = 0.0
    """When it began, in seconds since the epoch; 0 for now."""
    started: float = 0.0
    """The same as a monotonic time, which the store sets."""


class Conditions:
    """The conditions of one process, and their only log. May be used in any thread."""

    def __init__(self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds since the epoch, ``monotonic`` those that are never set back."""
        self._clock = clock
        self._monotonic = monotonic
        self._changing = threading.Lock()  # guards _current
        self._current: dict[tuple[Hashable, str], tuple[Condition, ...]] = {}

    def replace(self, source: Hashable, resource: str, now: Iterable[Condition]) -> None:
        """Replace the conditions that one source has reported of a resource, or, if it is empty, of the process.

        New conditions begin, and missing ones end. A condition whose detail changes keeps its age.
        """
        with self._changing:
            before = self._current.get((source, resource), ())
            known = {(each.kind.name, each.subject): each for each in before}
            after = tuple(self._dated(each, known.get((each.kind.name, each.subject))) for each in now)
            if after:
                self._current[source, resource] = after
            else:
                self._current.pop((source, resource), None)
            _log(resource, before, after, self._monotonic())

    def _dated(self, condition: Condition, before: Condition | None) -> Condition:
        """Return a condition with the times at which it began, before which it was ``before``."""
        if before is not None:
            return condition._replace(since=condition.since or before.since, started=before.started)
        now = self._clock()
        since = condition.since or now
        return condition._replace(since=since, started=self._monotonic() - (now - since))

    def set(self, kind: Kind, cause: str, *, resource: str = "", subject: str = "", **fields: object) -> None:
        """Set the detail of the only condition of a kind to ``cause``; an empty ``cause`` ends the condition.

        ``fields`` are the fields of the log record, by default ``error``.
        """
        found = [Condition(kind, cause, subject, fields or {"error": cause})] if cause else []
        self.replace(kind, resource, found)

    def of(self, resource: str) -> list[Condition]:
        """Return the conditions of a resource, or, if it is empty, of the process."""
        with self._changing:
            return [each for (_, name), found in self._current.items() if name == resource for each in found]


def _log(resource: str, before: Iterable[Condition], after: Iterable[Condition], now: float) -> None:
    """Log the conditions that begin, change their details, and end; ``now`` is a monotonic time."""
    known = {(each.kind, each.subject): each for each in before}
    about = {"resource": resource} if resource else {}
    for each in after:
        same = known.pop((each.kind, each.subject), None)
        if each.kind.begins and (same is None or same.detail != each.detail):
            LOG.log(each.kind.level, each.kind.begins, extra={**about, **each.fields})
    for each in known.values():
        if each.kind.ends:
            subject = {"subject": each.subject} if each.subject else {}
            LOG.info(each.kind.ends, extra={**about, **subject, "duration_ms": milliseconds(now - each.started)})
