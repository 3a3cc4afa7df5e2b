"""Generated from the .proto files of the kubelet's APIs: ``make generate``."""
