"""The binder driver on this host: binderfs mounts and ioctls, device numbers, the mount table."""
