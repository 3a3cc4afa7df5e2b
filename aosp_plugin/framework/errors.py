"""Errors that the framework raises, or expects from a backend.

::

    PluginError                      base class; exit_code is 1
    ├── ConfigError                  a flag, variable or file is invalid: exit code 2
    ├── BackendError                 a scan of the host failed, or a backend could not clean up
    ├── CdiError                     the CDI spec file cannot be written or removed
    ├── ClaimRecordError             the records of the prepared claims cannot be read or locked
    ├── ClaimError                   a claim cannot be prepared now
    │   └── ClaimRefusedError        ... and never as it is
    ├── FormerClaimError             a claim was prepared in another configuration
    ├── ServiceError                 the HTTP address is unavailable, or an HTTP query failed
    ├── WorkerTimeoutError           a call in a worker thread did not end in time
    ├── ServiceAccountMissingError   no service account, or no address of the API server; in ``apiserver.credentials``
    ├── ApiError                     a request to the API server; its subclasses are in ``apiserver.protocol``
    ├── KubeletError                 the kubelet or its plugin directory
    │   ├── KubeletDirectoryError    missing, not writable, or its path is too long for a socket
    │   └── RegistrationFailedError  this attempt failed; the supervisor retries
    └── AllocationError              the answer to a request of the kubelet: a gRPC status code and a message
        ├── InvalidRequestError      INVALID_ARGUMENT
        ├── UnknownDeviceError       NOT_FOUND
        ├── UnhealthyDeviceError     FAILED_PRECONDITION
        └── PreStartTimeoutError     DEADLINE_EXCEEDED

An error has a class of its own only if some caller handles it separately. An ``OSError`` is not wrapped if callers
would handle the wrapper in the same way. A main program catches ``PluginError``, prints one line and exits.
"""

from typing import ClassVar


class PluginError(Exception):
    """Base class. The message is one line that names the fault, its place and the remedy."""

    exit_code: ClassVar[int] = 1
    """Exit code of a process that this error ends."""


class ConfigError(PluginError):
    """A flag, environment variable or configuration file has an invalid name or value."""

    exit_code = 2


class BackendError(PluginError):
    """A backend could not scan its devices, or could not clean up."""


class CdiError(PluginError):
    """A CDI spec file could not be written or removed."""


class ClaimRecordError(PluginError):
    """The records of the prepared claims cannot be read or locked. A retry may succeed."""


class ClaimError(PluginError):
    """A ResourceClaim cannot be prepared: it is gone or not allocated, or its devices are not available."""


class ClaimRefusedError(ClaimError):
    """A ResourceClaim asks for what no device of the driver can do, or its pod has ended: no fault of the node."""


class FormerClaimError(PluginError):
    """A claim can neither be repaired nor released, because its devices or its spec are elsewhere than configured."""


class ServiceError(PluginError):
    """The HTTP server could not listen, or a query of it failed."""


class WorkerTimeoutError(PluginError):
    """A call in a worker thread did not end in time, or did not start because of an earlier call."""


class KubeletError(PluginError):
    """Base class for errors of the kubelet, or of the directory that it shares with its plugins."""


class KubeletDirectoryError(KubeletError):
    """The kubelet's plugin directory is not usable."""


class RegistrationFailedError(KubeletError):
    """This attempt to register failed. A retry may succeed."""


class AllocationError(PluginError):
    """A request of the kubelet cannot be served."""

    code: ClassVar[str] = "UNKNOWN"
    """Name of the ``grpc.StatusCode`` of the answer."""


class InvalidRequestError(AllocationError):
    """The request is empty, malformed, or asks for devices that cannot be combined."""

    code = "INVALID_ARGUMENT"


class UnknownDeviceError(AllocationError):
    """The request names a device ID that is not advertised."""

    code = "NOT_FOUND"


class UnhealthyDeviceError(AllocationError):
    """The requested device is known but unhealthy."""

    code = "FAILED_PRECONDITION"


class PreStartTimeoutError(AllocationError):
    """A device could not be prepared for a container in time. The preparation may still be running."""

    code = "DEADLINE_EXCEEDED"


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors in an exception group, however nested, or the error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for member in error.exceptions for leaf in leaves(member)]
