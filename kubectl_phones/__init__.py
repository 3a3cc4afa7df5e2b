"""``kubectl phones``: the phones of a cluster, from the objects of the API server.

    kubectl (``kubectl get --raw``) -> objects -> devices, phones, nodes, problems -> fleet -> text or JSON

Requires kubectl, and only the standard library of Python.
"""

__version__ = "0.1.0"
