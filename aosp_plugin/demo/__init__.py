"""``aosp-plugin demo``: the real plugin on one machine, with a stand-in kubelet and stand-in devices.

``steps`` shows what the plugin does step by step and ends. ``stay`` keeps a host of phones running, whose pods come and
go, until a key or a signal ends it.
"""
