"""Binder as a backend of ``deviceplugin``: the one room where both meet."""

from aosp_plugin.backend.binder_backend import BinderBackend, identities
from aosp_plugin.backend.settings import Settings

__all__ = ["BinderBackend", "Settings", "identities"]
