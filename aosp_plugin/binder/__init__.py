"""The Android binder driver on this host: files, ioctls and mounts. Independent of Kubernetes, gRPC and asyncio."""
