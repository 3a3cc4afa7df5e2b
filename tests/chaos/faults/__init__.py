"""What can happen. A new fault is a function in the module of its place, and nothing else anywhere."""

from tests.chaos.faults import clock, directories, kubelet, limits, links, nodes, process, streams

__all__ = ["clock", "directories", "kubelet", "limits", "links", "nodes", "process", "streams"]
