"""Binder devices as a backend of the framework: the only package that imports both ``binder`` and ``framework``."""

from aosp_plugin.backend.binder_backend import BinderBackend
from aosp_plugin.backend.parts import expected_devices

__all__ = ["BinderBackend", "expected_devices"]
