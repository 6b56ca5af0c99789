"""Settings of a service: one frozen, validated value, read once at the start from four sources.

A value comes from the first source that has it: the flag `--max-batch`, the environment
(`FASTSERVE_SCHEDULER_MAX_BATCH` for one service, `FASTSERVE_MAX_BATCH` for all), the service's table in the TOML file
named by `--config` (or FASTSERVE_CONFIG), the default. Flags and their help are generated from the fields of the model,
so that a new setting is added in one place. Fields that may be None accept `off`. An invalid value raises
InvalidFieldError, which names the source of the value and the limit; so does a table in the file that no command
reads.
"""

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from services.domain.errors import InvalidFieldError
from services.runtime.logs import LogFormat, LogLevel

ENVIRONMENT_PREFIX = "FASTSERVE_"
TABLES = frozenset({"autoscale", "gateway", "kvmanager", "profile", "scheduler", "simulate", "up", "worker"})
"""The tables that a file may have: all commands share one file, and each reads its own table."""
_OFF = ("off", "none")


class HostPort(NamedTuple):
    """The two parts of an address; port 0 stands for a free port."""

    host: str
    port: int


def split_address(address: str) -> HostPort:
    """The parts of HOST:PORT; an IPv6 host must be in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must be HOST:PORT with a port from 0 to 65535")
    if ":" in bare_host(host) and host == bare_host(host):
        raise ValueError("must have an IPv6 host in brackets, [HOST]:PORT")
    return HostPort(host, int(port))


def bare_host(host: str) -> str:
    """The host without the brackets that an IPv6 host has before a port."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def join_address(host: str, port: int) -> str:
    """The inverse of split_address; an IPv6 host may be with or without brackets."""
    bare = bare_host(host)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def _checked_address(address: str) -> str:
    split_address(address)
    return address


Address = Annotated[str, AfterValidator(_checked_address)]
"""HOST:PORT."""


class Settings(BaseModel):
    """The settings that all services have. A service's own settings are a subclass."""

    # By default pydantic reserves names that begin with model_.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    log_level: LogLevel = Field("info", description="lowest level that is logged")
    log_format: LogFormat = Field("human", description="human: a line of text per record; json: an object per line")
    metrics_port: int = Field(
        0, ge=0, le=65535, description="port of /metrics, on the same host as the gRPC server; 0 picks a free port"
    )
    old_metrics: bool = Field(
        False, description="also export the series that repeat what another service exports; sums then count twice"
    )
    ready_file: Path | None = Field(
        None, description="file to write as JSON when the service is ready, with the addresses it listens on"
    )
    die_with_parent: int | None = Field(
        None, ge=1, description="process id of the parent; the service is killed when the parent ends, however it ends"
    )


SettingsT = TypeVar("SettingsT", bound=BaseModel)


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing its usage, so that every bad flag results in a one-line error."""

    def error(self, message: str) -> NoReturn:
        raise InvalidFieldError("command line", message)


def flag_of(field_name: str) -> str:
    """`max_batch` -> `--max-batch`."""
    return "--" + field_name.replace("_", "-")


def _choices(annotation: Any) -> list[str]:
    """The values that a field accepts, if they are an enumeration."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(member.value) for member in annotation]
    return [word for part in get_args(annotation) if part is not NoneType for word in _choices(part)]


def _may_be_none(field: FieldInfo) -> bool:
    return NoneType in get_args(field.annotation)


def _help(field: FieldInfo) -> str:
    default = field.default
    if default is PydanticUndefined:
        note = "required"
    elif default is None:
        note = "default: off"
    else:
        note = f"default: {default.value if isinstance(default, Enum) else default}"
    # argparse interprets % as a format specifier.
    return f"{field.description or ''} ({note})".strip().replace("%", "%%")


def add_flags(parser: argparse.ArgumentParser, settings_class: type[BaseModel]) -> None:
    """Adds a flag for every field, and `--config`. Absent flags leave no attribute in the result of parsing."""
    parser.add_argument("--config", type=Path, default=argparse.SUPPRESS, help="TOML file, one table per service")
    for name, field in settings_class.model_fields.items():
        common: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": _help(field)}
        if field.annotation is bool:
            parser.add_argument(flag_of(name), action=argparse.BooleanOptionalAction, **common)
            continue
        words = _choices(field.annotation) + (["off"] if _may_be_none(field) and _choices(field.annotation) else [])
        metavar = "{" + ",".join(words) + "}" if words else name.rpartition("_")[2].upper()
        parser.add_argument(flag_of(name), metavar=metavar, **common)


def parse_flags(settings_class: type[BaseModel], argv: Sequence[str], prog: str) -> dict[str, Any]:
    """Parses a command line that has only these flags. Returns their values by field name, including `config`. `--help`
    exits.
    """
    parser = _Parser(prog=prog, allow_abbrev=False, description=settings_class.__doc__)
    add_flags(parser, settings_class)
    return vars(parser.parse_args(argv))


class _Found(NamedTuple):
    value: Any
    place: str


def _read_table(config_file: Path, table: str) -> dict[str, _Found]:
    try:
        document = tomllib.loads(config_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidFieldError("--config", f"can't read {config_file}: {reason}") from None
    known = TABLES | {table}
    if unknown := sorted(document.keys() - known):
        what = f"{unknown[0]} is not a table of settings; the tables are {', '.join(sorted(known))}"
        raise InvalidFieldError("--config", f"{config_file}: {what}")
    section = document.get(table, {})
    if not isinstance(section, dict):
        raise InvalidFieldError("--config", f"{config_file}: {table} must be a table")
    return {key.replace("-", "_"): _Found(value, f"{config_file}: [{table}] {key}") for key, value in section.items()}


def _read_environment(settings_class: type[BaseModel], table: str, environ: Mapping[str, str]) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    for name in settings_class.model_fields:
        for key in (f"{ENVIRONMENT_PREFIX}{table}_{name}".upper(), f"{ENVIRONMENT_PREFIX}{name}".upper()):
            if environ.get(key):
                found[name] = _Found(environ[key], key)
                break
    return found


def _as_none(field: FieldInfo | None, value: Any) -> Any:
    is_off = isinstance(value, str) and value.lower() in _OFF
    return None if field is not None and is_off and _may_be_none(field) else value


def resolve(
    settings_class: type[SettingsT],
    table: str,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    config_file: Path | None = None,
) -> SettingsT:
    """Settings from parsed flags (which must all be fields of the class), environment, file and defaults.

    `config_file` is used if neither a flag nor the environment names a file. Raises InvalidFieldError.
    """
    named = flags.get("config") or environ.get(ENVIRONMENT_PREFIX + "CONFIG") or config_file
    found = _read_table(Path(named), table) if named else {}
    found.update(_read_environment(settings_class, table, environ))
    found.update({name: _Found(value, flag_of(name)) for name, value in flags.items() if name != "config"})
    fields = settings_class.model_fields
    try:
        return settings_class.model_validate(
            {name: _as_none(fields.get(name), one.value) for name, one in found.items()}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _as_field_error(first, found) from None


def _as_field_error(problem: Any, found: Mapping[str, _Found]) -> InvalidFieldError:
    """A pydantic error as one line that names the source of the value."""
    if not problem["loc"]:
        return InvalidFieldError("settings", problem["msg"].removeprefix("Value error, "))
    name = str(problem["loc"][0])
    if problem["type"] == "missing":
        return InvalidFieldError(flag_of(name), "is required")
    if problem["type"] == "extra_forbidden":
        return InvalidFieldError(found[name].place, "there is no such setting")
    message = problem["msg"].removeprefix("Value error, ").replace("Input should", "should")
    place = found[name].place if name in found else flag_of(name)
    return InvalidFieldError(place, f"{message}, got {problem['input']!r}")


def load(
    settings_class: type[SettingsT],
    table: str,
    argv: Sequence[str],
    environ: Mapping[str, str],
    config_file: Path | None = None,
) -> SettingsT:
    """The settings of the service with the TOML table `table`. Raises InvalidFieldError; `--help` prints and exits
    0.
    """
    flags = parse_flags(settings_class, argv, prog=f"fastserve {table}")
    return resolve(settings_class, table, flags, environ, config_file)
