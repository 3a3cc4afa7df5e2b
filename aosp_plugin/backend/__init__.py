"""Binder devices as a backend of the framework: the only package that imports both ``binder`` and ``framework``."""

from aosp_plugin.backend.binder_backend import BinderBackend, create_backend
from aosp_plugin.backend.host_devices import expected_devices
from aosp_plugin.backend.offered_phones import SURPLUS_INTERVAL, Allocated

__all__ = ["SURPLUS_INTERVAL", "Allocated", "BinderBackend", "create_backend", "expected_devices"]
