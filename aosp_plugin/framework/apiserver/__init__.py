"""A client of the Kubernetes API server, for one event loop.

``client`` sends requests and repeats what failed for the moment, ``credentials`` are those of a pod, ``paths`` builds
and reads the paths of the API, ``errors`` has a class for each answer that callers handle.

Only ``client`` imports aiohttp, which requires megabytes of memory: import it only where a feature uses it.
"""
