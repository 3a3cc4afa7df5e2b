"""Client of the Kubernetes API server: the few requests that a DRA driver makes."""
