"""Binder devices from file to health, and devices as the kubelet counts them: sets, and preferred allocation."""
