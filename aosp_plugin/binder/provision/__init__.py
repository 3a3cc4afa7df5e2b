"""Creating binder devices: for the daemon, for test hosts, and as replacements of used ones."""
