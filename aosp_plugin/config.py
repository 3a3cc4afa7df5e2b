"""The configuration: every key with its default and what it may be, and where its value comes from.

A flag wins over an environment variable, that over the file, and that over the default. The class ``Config`` is the
only list of the keys: the flags of ``serve``, the AOSP_PLUGIN_* variables, the checks and ``aosp-plugin config`` all
follow from it.
"""

# No "from __future__ import annotations": the annotations of Config are what the keys are made of.
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec
import yaml

from aosp_plugin.binder.edits import OWN_BINDERFS, Isolation, SharedPath
from aosp_plugin.binder.health import Verify
from aosp_plugin.binder.nodes import LONGEST_NAME, name_problem
from aosp_plugin.deviceplugin.resource_names import is_extended_resource_name
from aosp_plugin.deviceplugin.service import KUBELET_DIRECTORY
from aosp_plugin.errors import ConfigError

ENVIRONMENT_PREFIX = "AOSP_PLUGIN_"
FILE_VERSION = "v1"

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class Key(NamedTuple):
    """What people read of a key, and what is asked of its value beyond the type."""

    help: str
    allowed: str
    check: Callable[[Any], object] = lambda _value: True
    """Returns something false, or raises ValueError, where the value is not allowed."""
    flag: bool = True
    """Whether ``serve`` has a flag for it, beside the variable and the file."""


def shared_path(text: str) -> SharedPath:
    """Read HOST or HOST:CONTAINER. Raises ValueError."""
    host, _, container = text.partition(":")
    container = container or host
    if not container.startswith("/") or not (host.startswith("/") or host == OWN_BINDERFS):
        raise ValueError(text)
    return SharedPath(host, container)


def listen_address(text: str) -> tuple[str, int] | None:
    """Read host:port, or [IPv6]:port; None where it is empty. Raises ValueError."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or re.fullmatch(r"[0-9]{1,5}", port) is None or int(port) > 65535:  # noqa: PLR2004 - 16 bits
        raise ValueError(text)
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_path(value: str) -> bool:
    return value.startswith("/")


def _is_name_or_nothing(value: str) -> bool:
    return re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", value) is not None


def _are_permissions(value: str) -> bool:
    return re.fullmatch(r"[rwm]{1,3}", value) is not None and len(set(value)) == len(value)


def _are_shared_mounts(values: Iterable[str]) -> bool:
    return all(shared_path(text) for text in values)


def _are_shared_devices(values: Iterable[str]) -> bool:
    return all(shared_path(text).host_path != OWN_BINDERFS for text in values)


def _is_printable(value: Any) -> bool:
    """Say whether the text, or all of the list's, can be printed, logged and sent to the kubelet as it is."""
    texts = value if isinstance(value, tuple) else (value,)
    return all(text.isprintable() for text in texts if isinstance(text, str))


_PATHS = "a list of HOST or HOST:CONTAINER, absolute paths"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The effective configuration."""

    resource_name: Annotated[
        str,
        Key(
            "What pods ask for.",
            "a domain, a slash and a name, as in example.com/binder",
            is_extended_resource_name,
        ),
    ] = "aosp.io/binder"
    device_dir: Annotated[str, Key("Host directory of the nodes.", "an absolute path", _is_path)] = "/dev"
    device_prefix: Annotated[
        str,
        Key(
            "What the nodes' names begin with.",
            f"1 to {LONGEST_NAME} printable characters but space, comma and /",
            lambda value: name_problem(value) is None,
        ),
    ] = "aosp_binder"
    host_root: Annotated[str, Key("Where the host's files are seen, in a container.", "an absolute path", _is_path)] = (
        "/"
    )
    kubelet_dir: Annotated[str, Key("The kubelet's plugin directory.", "an absolute path", _is_path)] = (
        KUBELET_DIRECTORY
    )
    listen: Annotated[
        str,
        Key(
            "Address of /healthz and /readyz; empty turns it off.",
            "host:port, [IPv6]:port, or empty",
            lambda value: listen_address(value) or not value,
        ),
    ] = "127.0.0.1:9478"
    verify: Annotated[Verify, Key("What a node must show to be Healthy.", ", ".join(Verify))] = Verify.CHAR
    isolation: Annotated[Isolation, Key("What a container sees of the binderfs.", ", ".join(Isolation))] = (
        Isolation.SHARED
    )
    log_level: Annotated[LogLevel, Key("The least that is logged.", ", ".join(get_args(LogLevel)))] = "info"
    log_format: Annotated[LogFormat, Key("How it is logged.", ", ".join(get_args(LogFormat)))] = "text"
    require_nodes: Annotated[bool, Key("Exit at the start where there is no node.", "true, false")] = False

    permissions: Annotated[
        str,
        Key(
            "Device cgroup permissions of a node.",
            "any of r, w and m, each once",
            _are_permissions,
            flag=False,
        ),
    ] = "rw"
    shared_mounts: Annotated[
        tuple[str, ...],
        Key(
            f"Directories that every container gets read-only; {OWN_BINDERFS} is that of its own nodes.",
            f"{_PATHS}; HOST may be {OWN_BINDERFS}",
            _are_shared_mounts,
            flag=False,
        ),
    ] = (f"{OWN_BINDERFS}:/dev/binderfs",)
    shared_devices: Annotated[
        tuple[str, ...],
        Key(
            "Devices that every container gets, where the host has them.",
            _PATHS,
            _are_shared_devices,
            flag=False,
        ),
    ] = ("/dev/ashmem",)
    visible_devices_env: Annotated[
        str,
        Key(
            "Variable with the names of a container's nodes; empty: none.",
            "a variable's name, or empty",
            _is_name_or_nothing,
            flag=False,
        ),
    ] = "BINDER_VISIBLE_DEVICES"
    path_env: Annotated[
        str,
        Key(
            "PATH of a container; empty: the image's.",
            "directories with : between them, or empty",
            flag=False,
        ),
    ] = "/system/bin:/system/xbin"
    forget_after: Annotated[
        float,
        Key(
            "Seconds until a missing node is dropped, and a replaced one taken for good.",
            "a number, 0 or more",
            lambda value: 0 <= value < math.inf,
            flag=False,
        ),
    ] = 300.0


class Setting(NamedTuple):
    """The value of one key and where it was set."""

    value: Any
    source: str


KEYS: Mapping[str, Key] = {
    name: next(part for part in hint.__metadata__ if isinstance(part, Key))
    for name, hint in get_type_hints(Config, include_extras=True).items()
}

_TYPES = get_type_hints(Config)
_DEFAULTS = Config()


def load(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: str | None
) -> tuple[Config, dict[str, Setting]]:
    """Return the effective configuration, and each key's value and source.

    ``flags`` has the flags that were given; ``file`` is a path. Raises ConfigError.
    """
    file = file or environment.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    variables = from_environment(environment)
    settings = {name: Setting(getattr(_DEFAULTS, name), "default") for name in KEYS}
    for values, source in (
        (from_file(file) if file else {}, "file {file}: {key}"),
        (variables, "variable {variable}"),
        (flags, "flag {flag}"),
    ):
        for name, value in values.items():
            words = {"file": file, "key": name, "variable": variable(name), "flag": flag(name)}
            settings[name] = _setting(name, value, source.format(**words))
    return Config(**{name: setting.value for name, setting in settings.items()}), settings


def flag(name: str) -> str:
    """Return the flag of a key."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of a key."""
    return ENVIRONMENT_PREFIX + name.upper()


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Pick the keys out of the environment; lists have commas between their parts. Raises ConfigError."""
    values: dict[str, Any] = {}
    names = {variable(name): name for name in KEYS}
    for found, text in environment.items():
        if not found.startswith(ENVIRONMENT_PREFIX) or found == f"{ENVIRONMENT_PREFIX}CONFIG":
            continue
        if found not in names:
            raise ConfigError(f"variable {found}: there is no such key; the variables are {_listed(names)}")
        name = names[found]
        is_list = isinstance(getattr(_DEFAULTS, name), tuple)
        values[name] = [part for part in text.split(",") if part] if is_list else text
    return values


def from_file(path: str) -> dict[str, Any]:
    """Read the keys of a YAML file that says ``version: v1``. Raises ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            document = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"file {path} can't be read: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two: 0x_, and [[[[...
        raise ConfigError(f"file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"file {path}: a mapping of keys to values is expected, with version: {FILE_VERSION}")
    version = document.pop("version", None)
    if version != FILE_VERSION:
        raise ConfigError(f"file {path}: version: {version!r} is not known; allowed: {FILE_VERSION}")
    for name in document:
        if name not in KEYS:
            raise ConfigError(f"file {path}: {name}: there is no such key; the keys are {_listed(KEYS)}")
    return document


def _setting(name: str, value: Any, source: str) -> Setting:
    try:
        # Variables and flags bring text: not strict, so that "true" and "300" are what they say.
        converted = msgspec.convert(value, _TYPES[name], strict=not isinstance(value, str))
        if _is_printable(converted) and KEYS[name].check(converted):
            return Setting(converted, source)
    except (msgspec.ValidationError, ValueError):
        pass  # said below, in the same words for everything that is not allowed
    raise ConfigError(f"{source}: {value!r} is not allowed; allowed: {KEYS[name].allowed}")


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names))


def as_yaml(settings: Mapping[str, Setting]) -> str:
    """Return a configuration file with every key, and behind each value where it comes from."""
    lines = [f"version: {FILE_VERSION}"]
    for name, setting in settings.items():
        value = msgspec.json.encode(setting.value).decode()  # JSON is YAML, and stays on one line
        lines.append(f"{name}: {value}  # {setting.source}")
    return "\n".join(lines) + "\n"
