"""Android binder on this host: files, ioctls and mounts. Knows nothing of Kubernetes, gRPC or asyncio."""
