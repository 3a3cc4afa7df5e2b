"""What people who run the plugin need of it: logs, metrics, leaks, and over HTTP its health and the node's state."""
