"""Variables that a kubelet adds for Services are not configuration; misspelled variables still are an error."""

import pytest

from aosp_plugin.config.keys import KEYS
from aosp_plugin.config.sources import load, variable
from aosp_plugin.framework.errors import ConfigError
from tests.support import run_command

POD = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOSTNAME": "aosp-device-plugin-x7k2p",
    "HOME": "/root",
    "POD_IP": "10.244.0.7",
}
"""What each container of the plugin has beside its configuration and the links of Services."""

SERVICES: dict[str, tuple[str, list[tuple[str, str, int]]]] = {
    "aosp-plugin": ("10.96.0.17", [("http", "TCP", 9478)]),
    "aosp-plugin-metrics": ("10.96.0.18", [("", "TCP", 80)]),
    "aosp-plugin-release-2": ("fd00::12", [("http", "TCP", 9478), ("log-level", "UDP", 9479), ("sctp", "SCTP", 1)]),
    "aosp-plugin-config": ("10.96.0.19", [("config", "TCP", 443)]),
    "aosp-plugin-listen-service-host": ("10.96.0.20", [("", "TCP", 1)]),
}
"""Services in the plugin's namespace: their address, and the name, protocol and number of each port."""


def service_links(name: str, address: str, ports: list[tuple[str, str, int]]) -> dict[str, str]:
    """Return the variables of a Service: pkg/kubelet/envvars/envvars.go ``FromServices``, ``makeLinkVariables``."""
    prefix = name.upper().replace("-", "_")
    host = f"[{address}]" if ":" in address else address
    links = {f"{prefix}_SERVICE_HOST": address, f"{prefix}_SERVICE_PORT": str(ports[0][2])}
    for port, protocol, number in ports:
        url = f"{protocol.lower()}://{host}:{number}"
        if port:
            links[f"{prefix}_SERVICE_PORT_{port.upper().replace('-', '_')}"] = str(number)
        links.setdefault(f"{prefix}_PORT", url)
        link = f"{prefix}_PORT_{number}_{protocol}"
        links |= {
            link: url,
            f"{link}_PROTO": protocol.lower(),
            f"{link}_PORT": str(number),
            f"{link}_ADDR": address,
        }
    return links


LINKS = {name: service_links(name, *service) for name, service in SERVICES.items()}
ALL_LINKS = {name: value for links in LINKS.values() for name, value in links.items()}


def test_links_of_services_are_ignored() -> None:
    own = {"AOSP_PLUGIN_LOG_LEVEL": "warning"}
    for links in LINKS.values():
        assert load({}, POD | own | links, None) == load({}, own, None)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        *((f"{command} --verify=x", 2, "flag --verify: ") for command in ("serve", "provision", "provisioner")),
        ("config", 0, "version: v1"),
        ("check", 1, "aosp.io/binder: checks failed"),
        ("status", 1, "listen is empty"),
        ("reload", 1, "listen is empty"),
    ],
)
def test_a_command_runs_in_a_pod_beside_services(command: str, code: int, said: str) -> None:
    """It gets past the variables, to what ends it: a wrong flag, no devices, or no address of the plugin."""
    result = run_command(*command.split(), environment=POD | ALL_LINKS | {"AOSP_PLUGIN_LISTEN": ""})
    assert result[0] == code
    assert said in result[1] + result[2]


def test_a_variable_that_is_no_link_of_a_service_is_an_error() -> None:
    """Without its Service, AOSP_PLUGIN_PORT is what users write for AOSP_PLUGIN_LISTEN, as the chart has ``port``."""
    for name, others in (("LISTEM", ALL_LINKS), ("PORTS", ALL_LINKS), ("SERVICE_NAME", ALL_LINKS), ("PORT", {})):
        with pytest.raises(ConfigError, match=f"^variable AOSP_PLUGIN_{name}: unknown variable; "):
            load({}, {f"AOSP_PLUGIN_{name}": "80", **others}, None)


def test_no_key_has_a_variable_that_a_service_can_have() -> None:
    """Otherwise the configuration of a key would be lost, or a link would be taken for it."""
    for key in KEYS:
        name = variable(key)
        service = {"AOSP_PLUGIN" + name[len("AOSP_PLUGIN") : end] for end in range(len("AOSP_PLUGIN"), len(name))}
        links = {link for prefix in service for link in service_links(prefix, "10.0.0.1", [("a", "TCP", 1)])}
        assert name not in links, key
