"""Binder devices as a backend of the framework: the only package that imports both ``binder`` and ``framework``."""

from aosp_plugin.backend.binder_backend import BinderBackend, identities

__all__ = ["BinderBackend", "identities"]
