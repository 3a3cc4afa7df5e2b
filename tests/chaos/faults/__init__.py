"""The faults. To add a fault, add a decorated function to the module of its place."""

from tests.chaos.faults import devices, directories, kubelet, limits, process, streams

__all__ = ["devices", "directories", "kubelet", "limits", "process", "streams"]
