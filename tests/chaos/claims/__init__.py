"""Random faults for a DRA driver, with stand-ins for kubelet and API server: ``make chaos-claims``.

The driver is ``aosp-plugin serve`` as a process of its own, with files in place of binder devices. Pods with claims
come and go. Each step injects some faults at once, also while claims are being prepared, and waits until the invariants
hold again (``invariants``). At the end of a seed, all pods end, and nothing may be left of their claims.
"""
