"""A client of the Kubernetes API server, for one event loop.

``client`` sends requests, ``retries`` repeats what failed for the moment,
``credentials`` are those of a pod, ``paths`` builds and reads the paths of the API, ``errors`` has a class for each
answer that callers handle.

Only this package and the stand-in API server of ``kubelet_standin`` import aiohttp, which requires megabytes of
memory: import ``client`` only where a feature uses it. The other modules do not import it.
"""
