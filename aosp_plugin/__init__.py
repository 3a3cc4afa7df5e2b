"""The Kubernetes device plugin that hands Android binder nodes to containers.

Start reading at ``plugin.py``, where ``binder`` (Android binder on this host) and ``deviceplugin`` (the
kubelet's protocol) meet. This module holds the version and nothing else, so that importing one room costs
only that room.
"""

__version__ = "0.1.0"
