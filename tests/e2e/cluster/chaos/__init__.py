"""Random faults of a cluster with phones; the invariants are checked after each.

``make chaos-cluster`` runs it: a control plane, three machines, the plugin, a Deployment and a StatefulSet of phones.
A step injects one to three faults, while pods come and go, ends them, and waits until the invariants hold, no longer
than Kubernetes promises. The seed, which is printed, decides on the faults and on all their details. The clock is
excluded, because the machines share the host's.
"""
