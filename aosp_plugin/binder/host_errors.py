"""Errors about the host and its binder driver.

::

    HostError                        the host is not in the required state
    ├── ProvisionerError             the provisioner does not answer
    └── BinderfsError                an operation on a binderfs or a binder device failed
        ├── NotPermittedError        missing capability, file mode or device cgroup rule
        └── DevicesExhaustedError    no free minor numbers, or the max= of the mount is reached

The text of each error is one line for an operator: the failed operation, its path, the cause and the remedy. A class of
its own exists only for an error that some caller handles separately. An OSError is not wrapped if the wrapper would add
nothing.
"""


class HostError(Exception):
    """The state of the host prevents an operation."""


class ProvisionerError(HostError):
    """The privileged process that mounts phones on request does not answer."""


class BinderfsError(HostError):
    """An operation on a binderfs or a binder device failed."""


class NotPermittedError(BinderfsError):
    """The process lacks a permission: root, CAP_SYS_ADMIN, or a rule in its device cgroup."""


class DevicesExhaustedError(BinderfsError):
    """No further binder device can be created: all minor numbers are in use, or the mount's ``max=`` is reached."""
