"""Discovery of binder devices: scans, identity, health, and the history from scan to scan."""
