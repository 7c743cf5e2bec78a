"""The `resources` of a plan file: what they are, where they lie, how they are sandboxed."""

import os
import re
import stat
from collections.abc import Mapping
from itertools import combinations

from cleveragents.errors import UsageError
from cleveragents.model.plan_spec import ResourceSpec
from cleveragents.model.resource import Carry, Kind
from cleveragents.model.triggers import nearest
from cleveragents.planfile.node import Fields, Node, Problems, suggest
from cleveragents.sandbox.git import address as git_address
from cleveragents.sandbox.postgres.address import VARIABLE, expand, shown, storable

DEFAULT_KINDS: Mapping[str, tuple[str, ...]] = {
    Kind.GIT_CHECKOUT: ("git_worktree", "copy_on_write", "in_place"),
    Kind.GIT_REMOTE: ("clone",),
    Kind.FS_DIRECTORY: ("copy_on_write", "filesystem_copy", "in_place", "none"),
    Kind.SQLITE: ("snapshot", "in_place"),
    Kind.POSTGRES: ("snapshot", "transaction_rollback"),
}
ADDRESS = {
    kind: "url" if kind in (Kind.POSTGRES, Kind.GIT_REMOTE) else "path" for kind in DEFAULT_KINDS
}
"""Kind -> the key that says where it is."""
ALIASES = {"filesystem_copy": "copy_on_write"}
KEYS = tuple(key for key in ResourceSpec.__struct_fields__ if key != "name")

_FOLDERS = (Kind.GIT_CHECKOUT, Kind.FS_DIRECTORY)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def _nearest_path(path: str) -> str:
    """`, did you mean X?` for what lies beside a path that is not there."""
    try:
        beside = os.listdir(os.path.dirname(path))
    except OSError:
        return ""
    return nearest(os.path.basename(path), beside)


class ResourceReader:
    """Reads the section; relative paths start at `base_dir`, variables come from `environ`."""

    def __init__(
        self,
        base_dir: str,
        kinds: Mapping[str, tuple[str, ...]],
        environ: Mapping[str, str],
        problems: Problems,
    ) -> None:
        self.base_dir = base_dir
        self.kinds = kinds
        self.environ = environ
        self.problems = problems

    def read(self, named: Mapping[str, Node]) -> tuple[ResourceSpec, ...]:
        specs = [self._resource(name, node) for name, node in named.items()]
        for first, second in combinations([spec for spec in specs if spec.path or spec.url], 2):
            trouble = _overlap(first, second)
            if trouble:
                self.problems.add(named[second.name].line, f"resource {second.name!r}: {trouble}")
        return tuple(specs)

    def _resource(self, name: str, node: Node) -> ResourceSpec:
        fields = Fields(node, f"resource {name!r}", KEYS, self.problems)
        if not _NAME.fullmatch(name):
            fields.bad("", "a name starts with a letter and has only letters, digits, '_' and '-'")
        kind = self._kind(fields)
        return ResourceSpec(
            name=name,
            kind=kind or "",
            path=self._path(fields, kind),
            url=self._url(fields, kind),
            branch=self._expanded(fields, "branch"),
            strategy=self._strategy(fields, kind),
            carry=self._carry(fields, kind),
            exclude=fields.words("exclude"),
            require_sandbox=fields.flag("require_sandbox", True),
        )

    def _kind(self, fields: Fields) -> str | None:
        fields.require("kind")
        kind = fields.choice("kind", self.kinds)
        if kind in ADDRESS:
            fields.require(ADDRESS[kind])
        elif kind:
            fields.one_of("path", "url")
        if kind and kind != Kind.GIT_REMOTE and "branch" in fields:
            fields.bad("branch", f"a {kind} has no 'branch'")
        return kind

    def _carry(self, fields: Fields, kind: str | None) -> Carry:
        given = Carry(fields.choice("carry", Carry) or Carry.ALL)
        if kind != Kind.GIT_REMOTE:
            return given
        if "carry" in fields and given is not Carry.COMMITTED:
            fields.bad("carry", f"of a {kind} only what is committed can be carried")
        return Carry.COMMITTED

    def _url(self, fields: Fields, kind: str | None) -> str:
        if kind and ADDRESS.get(kind) == "path" and "url" in fields:
            fields.bad("url", f"a {kind} has a 'path', not a 'url'")
            return ""
        url, written = self._expanded(fields, "url"), fields.text("url")
        if kind not in ADDRESS or not url:
            return url
        try:
            if kind == Kind.GIT_REMOTE:
                return git_address.storable(url, written, self._expanded(fields, "branch"))
            return storable(url, written)
        except UsageError as error:
            fields.bad("url", error.message, error.hint)
            return ""

    def _path(self, fields: Fields, kind: str | None) -> str:
        if kind and ADDRESS.get(kind) == "url" and "path" in fields:
            fields.bad("path", f"a {kind} has a 'url', not a 'path'")
            return ""
        expanded = self._expanded(fields, "path")
        if not expanded:
            return ""
        path = os.path.abspath(os.path.join(self.base_dir, os.path.expanduser(expanded)))
        try:
            mode = os.stat(path).st_mode
        except (OSError, ValueError) as error:
            reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else "not a path"
            shown = f"{reason[:1].lower()}{reason[1:]}: {expanded}"
            fields.bad("path", f"'path': {shown}{_nearest_path(path)}")
            return ""
        if kind in _FOLDERS and not stat.S_ISDIR(mode):
            fields.bad("path", f"not a directory: {expanded}")
        if kind == Kind.SQLITE and not stat.S_ISREG(mode):
            fields.bad("path", f"not a file: {expanded}")
        return os.path.realpath(path)

    def _expanded(self, fields: Fields, key: str) -> str:
        """The text with `$VAR` and `${VAR}` filled in; `$$` is a plain dollar."""
        text = fields.text(key)
        names = {match[2] or match[3] for match in VARIABLE.finditer(text) if not match[1]}
        unset = sorted(name for name in names if not self.environ.get(name))
        for name in unset:
            fields.bad(
                key, f"the environment variable {name} is not set or empty", f"export {name}=..."
            )
        if unset:
            return ""
        return expand(text, self.environ)

    def _strategy(self, fields: Fields, kind: str | None) -> str | None:
        given = fields.word("strategy")
        if kind is None:
            return None
        allowed = self.kinds[kind]
        if given is None:
            return ALIASES.get(allowed[0], allowed[0])
        name = ALIASES.get(given, given)
        if given not in allowed and name not in allowed:
            known = f"unknown strategy {given!r} for a {kind}{suggest(given, allowed)}"
            later = "strategy 'overlay' is not available yet"
            fields.bad("strategy", later if given == "overlay" else known)
        elif name == "none" and fields.flag("require_sandbox", True):
            fields.bad(
                "strategy",
                "strategy 'none' works on the target itself, which cannot be rolled back; "
                "add 'require_sandbox: false' if that is meant",
            )
        return name


def _overlap(first: ResourceSpec, second: ResourceSpec) -> str:
    """Why two resources cannot be in one plan; one that lies inside another can."""
    if (first.url or second.url) and shown(first.url) != shown(second.url):
        return ""
    if first.url or _same_place(first.path, second.path):
        return f"is the same as resource {first.name!r}"
    for outer, inner in ((first, second), (second, first)):
        below = inner.path.removeprefix(outer.path.rstrip("/") + "/")
        inside = below != inner.path and below.split("/")[0] == ".git"
        if inside and outer.kind == Kind.GIT_CHECKOUT:
            return f"{inner.path} is the git directory of resource {outer.name!r}"
    return ""


def _same_place(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:  # gone since it was looked at
        return first == second
