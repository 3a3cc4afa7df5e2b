"""A client of the Kubernetes API server, for one event loop.

``client`` sends requests and repeats what failed for the moment, ``credentials`` are those of a pod, ``protocol`` has
the paths, objects and errors of the API.

Only ``client`` imports aiohttp, which requires megabytes of memory: import it only where a feature uses it.
"""
