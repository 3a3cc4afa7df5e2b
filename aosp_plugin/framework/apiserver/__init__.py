"""A client of the Kubernetes API server, for one event loop.

``client`` sends requests and retries transient failures, ``credentials`` has the credentials of a pod, ``protocol`` the
paths, objects and errors of the API.

Only ``client`` imports aiohttp, which requires 9 MB of memory: when the first client is created.
"""

SERVICE_ACCOUNT_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where the kubelet mounts token and ca.crt in each container."""
