"""Settings in layers, each over the one before: defaults, the user's file, the project's file,
the environment, flags. Nothing is ignored: an unknown key or variable is an error that names
its place and what was probably meant.
"""

import os
import stat
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from cleveragents.config import tomledit
from cleveragents.config.value import FLAG, Given, absolute, texts_of, user_home, value_of
from cleveragents.errors import ConfigError, NotFound
from cleveragents.model.settings import ANY, BY_NAME, KEYS, Key, Settings, shown
from cleveragents.model.triggers import nearest

PROJECT_FILE = ".cleveragents.toml"
PREFIX = "CLEVERAGENTS_"
HOME = "CLEVERAGENTS_HOME"
MADE = "# made by agents config set\n"
"""How a file begins that `set` made; `unset` deletes it when nothing else is left."""


class ConfigValue(msgspec.Struct, frozen=True):
    """A setting in force; `source` is `default`, a file, a variable or `flag`."""

    key: str
    value: Any
    source: str


def load_settings(
    cwd: str, environ: Mapping[str, str], overrides: Mapping[str, str] | None = None
) -> Settings:
    settings = _settings(cwd, environ, _layers(cwd, environ, overrides or {}))
    for what, path in (("store", settings.home), ("sandboxes", settings.sandboxes)):
        _require_text(what, path)
    return settings


def _require_text(what: str, path: str) -> None:
    """The database keeps paths as text."""
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise ConfigError(
            f"the path of the {what} is not UTF-8: {shown}",
            "name another place: CLEVERAGENTS_HOME, or sandbox.dir for the sandboxes",
        ) from None


def explain(
    cwd: str, environ: Mapping[str, str], overrides: Mapping[str, str] | None = None
) -> list[ConfigValue]:
    """Every setting with its value and where that comes from."""
    given = _layers(cwd, environ, overrides or {})
    settings = _settings(cwd, environ, given)
    source = {each.key.name: each.source for each in given}
    return [
        ConfigValue(key.name, shown(settings, key), source.get(key.name, "default")) for key in KEYS
    ]


def set_value(
    key: str, raw_value: str, *, project: bool, cwd: str, environ: Mapping[str, str]
) -> str:
    """Writes one setting to the project's or the user's file; the path of that file."""
    path = _file_to_write(project, cwd, environ)
    known = _known(key, "")
    if known.kind == "url":
        value_of(Given(known, raw_value, path, cwd), environ)
    value = _written(Given(known, raw_value, FLAG, cwd), path, project, environ)
    if project:
        _require_not_personal(Given(known, value, path, cwd))

    def change(document: tomledit.Table) -> None:
        for name in known.names[1:]:
            tomledit.remove(document, name.split("."))
        tomledit.insert(document, known.name.split("."), value)

    text = _changed(path, change)
    given = _from_toml(text, path)
    for each in given:
        value_of(each, environ)
    if value not in [each.raw for each in given if each.key is known]:
        raise ConfigError(f"cannot set {known.name} in {path}", f"edit {path}")
    tomledit.write_atomically(path, text)
    return path


def unset_value(key: str, *, project: bool, cwd: str, environ: Mapping[str, str]) -> str:
    """Takes one key out of the file, also one that is unknown; the path of that file."""
    path = _file_to_write(project, cwd, environ)
    names = BY_NAME[key].names if key in BY_NAME else (key,)

    def change(document: tomledit.Table) -> None:
        removed = [tomledit.remove(document, name.split(".")) for name in names]
        if not any(removed):
            raise NotFound(f"{key!r} is not set in {path}", "agents config list")

    text = _changed(path, change)
    _parse_toml(text, path)
    if text.strip() == MADE.strip() and not os.path.islink(path):
        tomledit.delete(path)
    else:
        tomledit.write_atomically(path, text)
    return path


def _changed(path: str, change: Callable[[tomledit.Table], None]) -> str:
    text = _read(path) if os.path.lexists(path) else MADE
    _parse_toml(text, path)
    return tomledit.edited(text, change)


def _written(given: Given, path: str, project: bool, environ: Mapping[str, str]) -> Any:
    """The value as the file should have it: people's own words where they can stay."""
    value = value_of(given, environ)
    match given.key.kind:
        case "triggers":
            return list(value)
        case "path":
            return _written_path(given.raw, given.folder, path, project)
        case "paths":
            return [_written_path(each, given.folder, path, project) for each in texts_of(given)]
        case "bytes" | "duration":
            return int(given.raw) if given.raw.isascii() and given.raw.isdigit() else given.raw
        case _:
            return value


def _written_path(raw: str, cwd: str, file: str, project: bool) -> str:
    """A path relative to where the command was typed, made right for where it is written."""
    if not raw or raw.startswith("~") or os.path.isabs(raw):
        return raw
    absolute = os.path.abspath(os.path.join(cwd, raw))
    return os.path.relpath(absolute, os.path.dirname(file)) if project else absolute


def _settings(cwd: str, environ: Mapping[str, str], given: list[Given]) -> Settings:
    values = {each.key.field: value_of(each, environ) for each in given}
    return Settings(home=_store_home(cwd, environ), **values)


def _layers(cwd: str, environ: Mapping[str, str], overrides: Mapping[str, str]) -> list[Given]:
    """What is given, weakest first."""
    given = _from_file(_user_file(environ))
    project = project_file(cwd, environ)
    for each in _from_file(project) if project else ():
        _require_not_personal(each)
        given.append(each)
    given += _from_environment(cwd, environ)
    given += [Given(_known(name, ""), raw, FLAG, cwd) for name, raw in overrides.items()]
    return given


def _require_not_personal(given: Given) -> None:
    """A person who clones a repository does not know its settings."""
    name, barred = given.key.name, given.key.personal
    if barred == ANY or given.raw in barred:
        what = name if barred == ANY else f"{name} = {given.raw}"
        raise ConfigError(
            f"{given.source}: {what} cannot be set by a project",
            f"set it for yourself: agents config set {name} VALUE",
        )


def _known(name: str, source: str) -> Key:
    if name not in BY_NAME:
        where = f"{source}: " if source else ""
        hint = f"correct it or remove it from {source}" if source else "agents config list"
        sections = {known.rpartition(".")[0] for known in BY_NAME} - {name}
        names = (*BY_NAME, *sections)
        raise ConfigError(f"{where}unknown setting {name!r}{nearest(name, names)}", hint)
    return BY_NAME[name]


def _xdg(environ: Mapping[str, str], name: str, default: str) -> str:
    """The XDG rule: a variable that is empty or relative counts as not set."""
    base = environ.get(name, "")
    base = base if os.path.isabs(base) else os.path.join(user_home(environ), default)
    return os.path.join(base, "cleveragents")


def _store_home(cwd: str, environ: Mapping[str, str]) -> str:
    given = environ.get(HOME)
    if given:
        return absolute(given, cwd, environ)
    return _xdg(environ, "XDG_DATA_HOME", ".local/share")


def _user_file(environ: Mapping[str, str]) -> str:
    return os.path.join(_xdg(environ, "XDG_CONFIG_HOME", ".config"), "config.toml")


def _folders(cwd: str, environ: Mapping[str, str]) -> list[str]:
    """From `cwd` up to the git root, the home directory or `/`, whichever comes first."""
    folders = [os.path.abspath(cwd)]
    home = os.path.abspath(user_home(environ))
    while folders[-1] not in {home, "/"} and not os.path.exists(f"{folders[-1]}/.git"):
        folders.append(os.path.dirname(folders[-1]))
    return folders


def project_file(cwd: str, environ: Mapping[str, str]) -> str | None:
    paths = (os.path.join(folder, PROJECT_FILE) for folder in _folders(cwd, environ))
    return next((path for path in paths if os.path.lexists(path)), None)


def _file_to_write(project: bool, cwd: str, environ: Mapping[str, str]) -> str:
    if not project:
        return _user_file(environ)
    found = project_file(cwd, environ)
    if found:
        return found
    top = _folders(cwd, environ)[-1]
    folder = top if os.path.exists(f"{top}/.git") else os.path.abspath(cwd)
    return os.path.join(folder, PROJECT_FILE)


def _read(path: str) -> str:
    """The file's text, empty when there is none."""
    try:
        # A pipe in its place would keep us waiting for somebody to write into it.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"cannot read {path}: it is not a file")
            return file.read().decode()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", f"ls -ld {path}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"cannot read {path}: it is not UTF-8", f"edit {path}") from None


def _parse_toml(text: str, path: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", f"edit {path}") from None


def _from_file(path: str) -> list[Given]:
    text = _read(path)
    return _from_toml(text, path) if text else []


def _from_toml(text: str, path: str) -> list[Given]:
    found: dict[str, Given] = {}
    for name, raw in _flat(_parse_toml(text, path), ""):
        key = _known(name, path)
        if key.name in found:
            raise ConfigError(f"{path}: {key.name!r} is set twice, also as {name!r}")
        found[key.name] = Given(key, raw, path, os.path.dirname(path))
    return list(found.values())


def _flat(table: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    """Tables written out as dotted names; one that can hold no setting is itself a name."""
    flat: list[tuple[str, Any]] = []
    for part, value in table.items():
        name = prefix + part
        holds_settings = any(known.startswith(f"{name}.") for known in BY_NAME)
        if holds_settings and isinstance(value, dict):
            flat += _flat(cast("dict[str, Any]", value), f"{name}.")
        else:
            flat.append((name, value))
    return flat


def _variables() -> dict[str, Key]:
    """The variables that fill a setting: with and without the leading `SANDBOX_`."""
    names: dict[str, Key] = {}
    for name, key in BY_NAME.items():
        upper = name.upper().replace(".", "_").replace("-", "_")
        names[PREFIX + upper] = key
        names[PREFIX + upper.removeprefix("SANDBOX_")] = key
    return names


def _from_environment(cwd: str, environ: Mapping[str, str]) -> list[Given]:
    variables = _variables()
    found: dict[str, Given] = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name == HOME or name.startswith(f"{PREFIX}TEST_"):
            continue
        if name not in variables:
            near = nearest(name, (*variables, HOME))
            raise ConfigError(f"unknown environment variable {name!r}{near}", f"unset {name}")
        key = variables[name]
        other = found.setdefault(key.name, Given(key, environ[name], name, cwd))
        if other.raw != environ[name]:
            raise ConfigError(f"{name} and {other.source} contradict each other", f"unset {name}")
    return list(found.values())
