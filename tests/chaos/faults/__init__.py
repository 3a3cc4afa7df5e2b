"""The faults. To add a fault, add a decorated function to the module of its place."""

from tests.chaos.faults import clock, devices, directories, hangs, kubelet, limits, links, process, streams

__all__ = ["clock", "devices", "directories", "hangs", "kubelet", "limits", "links", "process", "streams"]
