"""Dynamic Resource Allocation (DRA): serves a backend's devices to the scheduler as ResourceSlices and claims.

The kubelet's side is in ``kubelet_service``, claims in ``claims``, ResourceSlices in ``publisher``; ``driver`` combines
them. aiohttp, which only the API server's client requires, is imported only where a driver runs.
"""
