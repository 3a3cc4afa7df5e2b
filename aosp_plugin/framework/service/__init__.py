"""Services that operators need, for plugins of any backend: logs, metrics, probes over HTTP, systemd notification."""
