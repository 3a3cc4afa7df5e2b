"""Which faults of this suite and of the simulated node (``tests/simulation``) are the same, and why others are not.

What must hold after a fault is the same as well: ``kubelet_has_the_devices`` is ``World.missing`` there,
``one_registration``, ``process_is_alive`` and ``process_is_ready`` are ``World.signals``, ``nothing_leaks`` is
``scenario._check_rest``, and what a container gets (``pods`` here) is ``Kubelet`` and ``Host.violated``. The other
invariants are of real files and processors: CDI specs of devices, inotify, and the time that an idle process uses.
"""

SAME = {
    "binderfs_is_mounted_again": "device-directory-is-missing device-directory-is-replaced",
    "device_is_removed": "device-flaps devices-appear devices-are-recreated devices-disappear",
    "events_overflow": "events-are-lost",
    "kubelet_directory_is_replaced": "kubelet-directory-is-emptied kubelet-directory-is-missing "
    "kubelet-directory-is-replaced",
    "kubelet_is_away": "kubelet-is-killed kubelet-is-stopped",
    "kubelet_restarts": "kubelet-restarts",
    "plugin_is_killed": "plugin-is-killed",
    "plugin_is_stopped": "plugin-is-terminated",
    "plugin_reloads": "configuration-changes configuration-is-reloaded",
    "plugin_socket_is_removed": "own-socket-is-deleted",
    "register_fails": "register-is-refused",
    "register_is_slow": "register-hangs register-is-slow",
    "streams_end": "streams-are-dropped",
}
"""Faults here, by the name of the simulated one."""

ONLY_HERE = {
    "the simulated host has a few devices with fixed names": "device-is-renamed device-moves-out-and-in "
    "many-devices-appear many-devices-disappear",
    "the simulated devices are no links": "links-appear targets-appear targets-disappear",
    "the simulated kubelet is one, of one version, with the sockets and calls that it should have": "foreign-streams "
    "kubelet-loses-its-socket kubelet-of-another-version kubelet-restarts-without-cleaning no-stream-is-opened",
    "gRPC is a call there: it has no bytes": "kubelet-sends-garbage",
    "a limit of the kernel's inotify": "no-inotify-instance no-inotify-watch",
    "a process there has no time of its own": "plugin-is-stopped",
    "the log of a simulated process is no pipe": "log-is-not-read",
}
"""Faults without a simulated one, by the reason."""

ONLY_SIMULATED = {
    "no API server and no claims here": "api_server_is_away api_server_is_slow api_server_refuses watches_end "
    "watches_have_a_gap slice_is_deleted slice_is_changed spec_is_removed cdi_directory_is_replaced claim_arrives "
    "claim_ends record_is_damaged claimed_phone_is_unmounted container_with_a_claim_restarts",
    "no binderfs here (tests/e2e/kernel)": "binderfs_is_full foreign_mount_covers_a_phone mounts_run_out "
    "phone_is_unmounted",
    "a host that hangs or is full is in tests/faults": "descriptors_run_out disk_is_full host_hangs host_is_slow",
    "a real process cannot be killed between two given calls": "plugin_is_killed_at_a_call "
    "plugin_is_killed_at_an_await",
    "a real kernel loses and delays no events at will, and a real clock is the machine's": "clock_jumps "
    "events_are_late events_are_lost",
    "podresources and a second plugin are in tests/faults and tests/integration": "kubelet_loses_devices "
    "podresources_is_slow podresources_is_wrong second_plugin",
    "pods come and go here beside the faults, not as such": "container_restarts pod_ends pod_starts",
    "the configuration of this suite has no phones; each change is in tests/integration": "api_changes "
    "cdi_directory_moves count_is_lowered count_is_raised driver_is_renamed per_device_is_lowered per_device_is_raised "
    "phones_move resource_is_renamed",
}
"""Simulated faults without one here, by the reason."""
