"""The plugin broken on purpose in four ways, each of which must make an item fail.

``make test-cluster-broken`` runs it. Each module of ``breaks`` replaces a method of the plugin. It is added to the
plugin's image in a layer of its own, with a ``.pth`` file by which Python imports it at its start. The items are those
that ``make test-cluster`` runs with the same image without that layer.
"""
