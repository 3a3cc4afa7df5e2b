"""A Kubernetes device plugin that gives Android binder devices to containers.

Start reading at ``backend/binder_backend.py``, where ``binder`` (the binder driver on this host) and ``framework``
(the kubelet's device plugin API) meet. This module holds only version and names, so that importing one package does not
load the others.
"""

__version__ = "0.1.0"

PROGRAM = "aosp-plugin"
"""The name of the command, and of its HTTP server."""

SOCKET_PREFIX = "aosp-"
"""The beginning of the names of all sockets in the kubelet's directory for device plugins."""
