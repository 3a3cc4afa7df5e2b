"""Measures DRA drivers side by side on a node of a real cluster: the plugin, and a driver in Go.

The Go driver is Kubernetes' own for tests (k8s.io/kubernetes/test/e2e/dra/test-driver), on the helper that Go drivers
in production share. It writes a CDI file for each claim, as the plugin does, but syncs no file.
All drivers run as processes of one machine at the same time, offer the same number of devices, and take turns.
"""
