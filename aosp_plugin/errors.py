"""Everything that this project raises on purpose, and what whoever catches it should do.

::

    AospPluginError
    ├── ConfigError                  a flag, variable or file is wrong: exit 2
    ├── KubeletError                 the kubelet, or its directory
    │   ├── KubeletDirectoryError    missing, not writable, or its path too long for a socket: exit 1
    │   ├── RegistrationFailedError  the kubelet is away, hangs or answers nonsense: tried again
    │   └── RegistrationRefusedError the kubelet will never take it: exit 1
    └── AllocationError              an answer to the kubelet: a gRPC code, and the device's name in the text
        ├── InvalidRequestError      INVALID_ARGUMENT
        ├── UnknownDeviceError       NOT_FOUND
        └── UnhealthyDeviceError     FAILED_PRECONDITION

    HostError                        see ``aosp_plugin.binder.errors``

Only what somebody handles has a class of its own. Errors of the operating system are not wrapped where the
caller can't do more about the wrapped one than about the OSError.
"""

from __future__ import annotations

from typing import ClassVar

from aosp_plugin.binder.errors import (
    BinderfsError,
    BinderMissingError,
    DeviceDirectoryError,
    DeviceExistsError,
    DeviceNameError,
    DevicesExhaustedError,
    HostError,
    NotPermittedError,
)

__all__ = [
    "AllocationError",
    "AospPluginError",
    "BinderMissingError",
    "BinderfsError",
    "ConfigError",
    "DeviceDirectoryError",
    "DeviceExistsError",
    "DeviceNameError",
    "DevicesExhaustedError",
    "HostError",
    "InvalidRequestError",
    "KubeletDirectoryError",
    "KubeletError",
    "NotPermittedError",
    "RegistrationFailedError",
    "RegistrationRefusedError",
    "UnhealthyDeviceError",
    "UnknownDeviceError",
]


class AospPluginError(Exception):
    """Base of all. Its text is one line for a person: what is wrong, where, and what to do."""

    exit_code: ClassVar[int] = 1


class ConfigError(AospPluginError):
    """A flag, environment variable or configuration file has a bad name or value."""

    exit_code = 2


class KubeletError(AospPluginError):
    """Something about the kubelet, or the directory it shares with its plugins."""


class KubeletDirectoryError(KubeletError):
    """The kubelet's plugin directory can't be used."""


class RegistrationFailedError(KubeletError):
    """This attempt to register failed, and the next one may not."""


class RegistrationRefusedError(KubeletError):
    """The kubelet refuses for a reason that no retry heals."""


class AllocationError(AospPluginError):
    """The kubelet asked for something that it can't have. ``code`` names a ``grpc.StatusCode``."""

    code: ClassVar[str] = "UNKNOWN"


class InvalidRequestError(AllocationError):
    """The request is empty or malformed."""

    code = "INVALID_ARGUMENT"


class UnknownDeviceError(AllocationError):
    """There is no device of that name."""

    code = "NOT_FOUND"


class UnhealthyDeviceError(AllocationError):
    """The device is there but not fit to be handed out."""

    code = "FAILED_PRECONDITION"
