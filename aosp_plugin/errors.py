"""All errors of this project: those of the framework, those of the binder driver's host, and ConfigError.

::

    PluginError                      see framework.errors for the tree below it
    ├── BackendError, CdiError, ServiceError, WorkerTimeoutError, KubeletError, AllocationError
    └── ConfigError                  a flag, variable or file is invalid: exit code 2
    HostError                        see binder.errors; the host is not set up as required: exit code 1

The command line catches ``PluginError`` and ``HostError``, prints one line and exits.
"""

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
from aosp_plugin.framework.errors import (
    AllocationError,
    BackendError,
    CdiError,
    InvalidRequestError,
    KubeletDirectoryError,
    KubeletError,
    PluginError,
    RegistrationFailedError,
    RegistrationRefusedError,
    ServiceError,
    UnhealthyDeviceError,
    UnknownDeviceError,
    WorkerTimeoutError,
)

__all__ = [
    "AllocationError",
    "BackendError",
    "BinderMissingError",
    "BinderfsError",
    "CdiError",
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
    "PluginError",
    "RegistrationFailedError",
    "RegistrationRefusedError",
    "ServiceError",
    "UnhealthyDeviceError",
    "UnknownDeviceError",
    "WorkerTimeoutError",
]


class ConfigError(PluginError):
    """A flag, environment variable or configuration file has an invalid name or value."""

    exit_code = 2
