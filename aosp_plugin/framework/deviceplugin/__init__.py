"""The kubelet's device plugin API v1beta1."""

KUBELET_DIRECTORY = "/var/lib/kubelet/device-plugins"
"""A constant of the kubelet; --root-dir does not change it (pkg/apis/deviceplugin/v1beta1/constants.go)."""
