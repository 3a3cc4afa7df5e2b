"""The opaque parameters of a ResourceClaim and its DeviceClass: validated and merged.

A class is written by an administrator, a claim by the user of a pod, who must not get more of the host than the class
allows. A key of the claim takes precedence over the same key of the class, and that over the configuration.
"""

# No "from __future__ import annotations": the keys are in the annotations of PhoneParameters.
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from aosp_plugin.binder.devices.patterns import is_pattern, matches, may_overlap, parts
from aosp_plugin.config.container_paths import reserved_path
from aosp_plugin.config.convert import Key, Limit, Setting, keys_of, require_known, shown
from aosp_plugin.config.values import AbsolutePath, are_different_paths, normalised
from aosp_plugin.framework.backend import ClaimParameters
from aosp_plugin.framework.errors import ConfigError, InvalidRequestError

API_VERSION = "phone.aosp.io/v1alpha1"
KIND = "PhoneParameters"

_PLACES = {"class": "parameters of the DeviceClass", "claim": "parameters of the ResourceClaim"}

_MAX_ITEMS = 64
_MAX_PATH_LENGTH = 255
_MAX_VALUE_LENGTH = 4096

_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def _are_container_paths(values: Sequence[str]) -> bool:
    """Return whether each path is normalised and printable, and occurs once."""
    return are_different_paths(values) and all(map(_is_path, values))


def _is_path(value: str) -> bool:
    return normalised(value) == value and len(value) <= _MAX_PATH_LENGTH and value.isprintable()


def _are_devices(values: Sequence[str]) -> bool:
    return all(_is_path(value) and not is_pattern(value) for value in values)


def _are_patterns(values: Sequence[str]) -> bool:
    return all(_is_path(value) and "**" not in value for value in values)


def _are_variables(values: Mapping[str, str]) -> bool:
    return len(values) <= _MAX_ITEMS and all(
        re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,127}", name) and len(text) <= _MAX_VALUE_LENGTH and text.isprintable()
        for name, text in values.items()
    )


class PhoneParameters(Struct, frozen=True, kw_only=True):
    """The keys of the parameters. In JSON, their names are in camel case."""

    container_paths: Annotated[
        tuple[AbsolutePath, ...],
        Meta(max_length=_MAX_ITEMS),
        Limit(
            f"a list of up to {_MAX_ITEMS} absolute paths without . and .., of up to {_MAX_PATH_LENGTH} characters, "
            "each once",
            _are_container_paths,
        ),
        Key("[/dev/binder, /dev/hwbinder, /dev/vndbinder]"),
    ] = ()
    """Additional paths of the binder devices in a container, in place of container_paths."""
    environment: Annotated[
        Mapping[str, str],
        Limit(
            f"a mapping of up to {_MAX_ITEMS} names of up to 128 letters, digits and underscores to texts of up to "
            f"{_MAX_VALUE_LENGTH} printable characters",
            _are_variables,
        ),
        Key("{PHONE_LOCALE: de-DE}"),
    ] = {}
    """Environment variables of the container, in addition to the variables of the class."""
    devices: Annotated[
        tuple[AbsolutePath, ...],
        Meta(max_length=_MAX_ITEMS),
        Limit(
            f"a list of up to {_MAX_ITEMS} absolute paths without wildcards, . and .., of up to {_MAX_PATH_LENGTH} "
            "characters",
            _are_devices,
        ),
        Key("[/dev/snd/controlC0]"),
    ] = ()
    """Further devices of the host that the container gets at the same paths, in addition to the devices of the class.
    Devices of a claim must match allowedDevices."""
    allowed_devices: Annotated[
        tuple[AbsolutePath, ...],
        Meta(max_length=_MAX_ITEMS),
        Limit(
            f"a list of up to {_MAX_ITEMS} absolute paths, which may have the wildcards *, ? and [...] per part, "
            f"of up to {_MAX_PATH_LENGTH} characters",
            _are_patterns,
        ),
        Key("[/dev/snd/*]"),
    ] = ()
    """Devices that a claim may request, as paths or patterns. Only for a class."""


class Parameters(NamedTuple):
    """The effective parameters of a request."""

    container_paths: tuple[str, ...] | None = None
    """None if neither class nor claim set them."""
    environment: Mapping[str, str] = _NO_VARIABLES
    devices: tuple[str, ...] = ()
    sources: Mapping[str, str] = _NO_VARIABLES
    """Where each key was set last, for errors."""


def camel_case(name: str) -> str:
    """Return the name in JSON of a key."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


PARAMETER_KEYS: Mapping[str, Key] = {camel_case(name): key for name, key in keys_of(PhoneParameters).items()}
"""The keys by their names in JSON, in the order of the documentation."""


def effective_parameters(parameters: Sequence[ClaimParameters], variables: Collection[str] = ()) -> Parameters:
    """Return the effective parameters; later elements of ``parameters`` take precedence.

    ``variables`` are the names of variables that the plugin sets itself. Raises InvalidRequestError, which names class
    or claim, the key, and what is allowed.
    """
    try:
        merged: dict[str, Setting] = {}
        allowed: tuple[str, ...] = ()
        for part in parameters:
            settings = _settings(part, variables)
            if "allowedDevices" in settings:
                allowed = settings.pop("allowedDevices").value
            if part.source == "claim" and "devices" in settings:
                _require_allowed(settings["devices"], allowed)
            for name, setting in settings.items():
                merged[name] = _merged(name, merged.get(name), setting)
    except ConfigError as error:
        raise InvalidRequestError(str(error)) from error
    values = {name: setting.value for name, setting in merged.items()}
    return Parameters(
        values.get("containerPaths"),
        values.get("environment", _NO_VARIABLES),
        values.get("devices", ()),
        {name: setting.source for name, setting in merged.items()},
    )


def require_free(parameters: Parameters, devices: Sequence[str], taken: Sequence[str]) -> None:
    """Raise InvalidRequestError if container paths of the parameters conflict with ``taken``, or with each other.

    ``devices`` are the devices of the parameters that the container does not get otherwise. A path below a read-only
    mount cannot be created, and of two mounts at one path the runtime keeps the last one.
    """
    for key, paths, others in (
        ("containerPaths", parameters.container_paths or (), (*taken, *devices)),
        ("devices", devices, taken),
    ):
        for index, path in enumerate(paths):
            other = next((other for other in (*others, *paths[:index]) if may_overlap(path, other)), None)
            if other is not None:
                raise InvalidRequestError(
                    f"{parameters.sources[key]}: the container path {shown(path)} conflicts with {shown(other)}, which "
                    "the container has as well"
                )


def _settings(part: ClaimParameters, variables: Collection[str]) -> dict[str, Setting]:
    """Return the settings of a class or claim by key. Raises ConfigError."""
    place, content = _PLACES[part.source], part.content
    if not isinstance(content, dict):
        raise ConfigError(f"{place}: {shown(content)} is not allowed; allowed: a mapping with kind: {KIND}")
    for name, supported in (("apiVersion", API_VERSION), ("kind", KIND)):
        if content.get(name) != supported:
            found = f"{shown(content[name])} is not supported" if name in content else "required key is missing"
            raise ConfigError(f"{place}: {name}: {found}; allowed: {supported}")
    values = {name: value for name, value in content.items() if name not in {"apiVersion", "kind"}}
    require_known(values, PARAMETER_KEYS, f"{place}: ")
    settings = {name: PARAMETER_KEYS[name].setting(value, f"{place}: {name}") for name, value in values.items()}
    if part.source == "claim" and "allowedDevices" in settings:
        raise ConfigError(f"{place}: allowedDevices: only a DeviceClass can set it")
    for variable in variables:
        if variable in settings.get("environment", Setting({}, "")).value:
            raise ConfigError(
                f"{place}: environment: the variable {variable} is not allowed: the plugin sets it to the names of "
                "devices; allowed: other names"
            )
    for setting in (settings[name] for name in ("containerPaths", "devices") if name in settings):
        for path in setting.value:
            if (reserved := reserved_path(path)) is not None:
                raise ConfigError(
                    f"{setting.source}: the container path {shown(path)} is not allowed: the container runtime or the "
                    f"kubelet provides {reserved}"
                )
    return settings


def _require_allowed(devices: Setting, allowed: Sequence[str]) -> None:
    """Raise ConfigError if a device of a claim matches none of the patterns of its class."""
    for path in devices.value:
        if not any(_matches(pattern, path) for pattern in allowed):
            patterns = ", ".join(allowed) or "no devices, because the DeviceClass has no allowedDevices"
            raise ConfigError(f"{devices.source}: {shown(path)} is not allowed; allowed: {patterns}")


def _matches(pattern: str, path: str) -> bool:
    names, patterns = parts(path), parts(pattern)
    return len(names) == len(patterns) and all(map(matches, patterns, names))


def _merged(name: str, before: Setting | None, setting: Setting) -> Setting:
    """Return ``setting`` merged with the weaker setting ``before``: variables and devices are joined, paths replaced.

    Raises ConfigError if the result has too many items.
    """
    if before is None or name == "containerPaths":
        return setting
    values = {**dict.fromkeys(before.value), **dict.fromkeys(setting.value)}
    if len(values) > _MAX_ITEMS:
        raise ConfigError(
            f"{setting.source}: {len(values)} in all, with those of the class and of other entries; allowed: up to "
            f"{_MAX_ITEMS}"
        )
    if name == "environment":
        return Setting({**before.value, **setting.value}, setting.source)
    return Setting(tuple(values), setting.source)
