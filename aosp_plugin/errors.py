"""Everything that this project raises on purpose, and what whoever catches it should do.

::

    AospPluginError
    ├── ConfigError                  a flag, variable or file is wrong: exit 2
    ├── HostError                    the host is not what it has to be: exit 1
    │   ├── DeviceDirectoryError     the directory of the nodes can't be read
    │   └── BinderfsError            binderfs refuses
    │       ├── BinderMissingError   the kernel has no binder, or no binderfs
    │       ├── NotPermittedError    needs root, or a device cgroup that lets us
    │       ├── DeviceExistsError      the name is taken
    │       ├── DeviceNameError        the kernel does not take this name
    │       └── DevicesExhaustedError  no minors left, or the mount's max= is reached
    ├── KubeletError                 the kubelet, or its directory
    │   ├── KubeletDirectoryError    missing, not writable, or its path too long for a socket: exit 1
    │   ├── RegistrationFailedError  the kubelet is away, hangs or answers nonsense: tried again
    │   └── RegistrationRefusedError the kubelet will never take it: exit 1
    └── AllocationError              an answer to the kubelet: a gRPC code, and the device's name in the text
        ├── InvalidRequestError      INVALID_ARGUMENT
        ├── UnknownDeviceError       NOT_FOUND
        └── UnhealthyDeviceError     FAILED_PRECONDITION

Only what somebody handles has a class of its own. Errors of the operating system are not wrapped where the
caller can't do more about the wrapped one than about the OSError.
"""

from __future__ import annotations

from typing import ClassVar


class AospPluginError(Exception):
    """Base of all. Its text is one line for a person: what is wrong, where, and what to do."""

    exit_code: ClassVar[int] = 1


class ConfigError(AospPluginError):
    """A flag, environment variable or configuration file has a bad name or value."""

    exit_code = 2


class HostError(AospPluginError):
    """Something about this host stands in the way."""


class DeviceDirectoryError(HostError):
    """The directory that should hold the nodes can't be read."""


class BinderfsError(HostError):
    """An operation on a binderfs failed."""


class BinderMissingError(BinderfsError):
    """This kernel has no binder driver, or was built without binderfs."""


class NotPermittedError(BinderfsError):
    """The process lacks a right: root, CAP_SYS_ADMIN, or its device cgroup's leave."""


class DeviceExistsError(BinderfsError):
    """A node or file of that name is there already."""


class DeviceNameError(BinderfsError):
    """The kernel does not accept this name for a node."""


class DevicesExhaustedError(BinderfsError):
    """No further node can be made: the kernel's minors or the mount's ``max=`` are used up."""


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
