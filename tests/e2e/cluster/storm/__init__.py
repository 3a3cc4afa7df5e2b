"""Measures a boot storm: all phones of a node are created at once, and deleted again, on a node of a real cluster.

Each scene is another way to get the devices, beside pods that request none. The plugin is a process of the machine that
logs each request. The pods, the kubelet and containerd are real; a tmpfs is mounted in place of each binderfs.
"""
