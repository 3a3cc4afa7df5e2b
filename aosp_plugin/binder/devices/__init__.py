"""What the kubelet counts: device sets, preferred allocation and NUMA nodes."""
