"""Finding binder devices: scanning the host, identity, health, and what is remembered between scans."""
