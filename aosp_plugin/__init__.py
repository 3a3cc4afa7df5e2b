"""A Kubernetes device plugin that gives Android binder devices to containers.

Start reading at ``backend/binder_backend.py``, where ``binder`` (the binder driver on this host) and ``framework``
(the kubelet's device plugin API) meet. This module holds only the version, so that importing one package does not
load the others.
"""

__version__ = "0.1.0"
