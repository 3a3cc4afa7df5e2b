"""``kubectl phones``: the phones of a cluster, and the nodes whose plugin is absent, not ready or disagrees.

``command`` has the options, ``run`` does what they say, and ``gather`` makes the requests: ``kubectl_proxy`` starts
``kubectl proxy``, which authenticates, ``api`` sends requests to it, ``decoding`` reads the API server's objects and
``plugin_answers`` what plugins answer. Everything else is pure: ``cluster`` has the objects that were read, ``fleet``
derives the document from them with ``pods``, ``devices``, ``phones``, ``nodes`` and ``problems``, ``report`` defines
the document, and ``text`` renders it.
"""
