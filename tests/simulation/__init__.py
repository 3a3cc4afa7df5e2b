"""The whole plugin in one process, on a simulated host, with a stand-in kubelet and in simulated time.

``python -m tests.simulation --faults 10000`` runs it. A run depends on its seed alone: the event loop's time is
virtual (``loop``), the host is in memory (``host``, ``files``), worker threads are steps of the event loop
(``processes``), and gRPC is a call (``rpc``). The package of the plugin is unchanged: it is loaded a second time, with
``os``, ``time``, ``grpc`` and a few more modules of the simulation (``loader``, ``system``).

``faults`` disturbs. ``scenario`` combines and shrinks faults, and checks that the node recovers and that a signal says
what is wrong. ``readers`` asks the plugin by HTTP, and ``node`` follows its Events and the startup taint: what they
learn has to be true. The simulated host, kubelet and claims report what must never happen (``Host.violated``).

The kubelet and the objects of the API server are those of ``kubelet_standin``, which gets the simulated host as an
argument; real ones are held against it.
"""
