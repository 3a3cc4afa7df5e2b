"""The kernel interface of the binder driver: binderfs mounts and ioctls, device numbers, the mount table."""
