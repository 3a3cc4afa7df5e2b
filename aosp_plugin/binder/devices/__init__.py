"""Devices as the kubelet counts them: device sets, preferred allocation and NUMA nodes."""
