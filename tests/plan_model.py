"""What a plan does, worked out without the program: dictionaries, one step after the other.

A state is resource -> {path: bytes, or None for a directory}, for the database {key: text}.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

State = Mapping[str, Mapping[Any, Any]]
FOLDERS = ("one", "two", "app")
DATABASE = "db"


@dataclass(frozen=True)
class Step:
    id: str
    on: str
    tool: str
    inputs: tuple[tuple[str, Any], ...]
    needs: tuple[str, ...] = ()
    influences: tuple[str, ...] = ()
    parent: str | None = None
    shares: str | None = None
    """The earlier step whose decision this one belongs to."""

    def written(self) -> dict[str, Any]:
        """As it stands in the plan file."""
        found: dict[str, Any] = {"id": self.id, "on": self.on}
        if self.tool == "flag":
            name = dict(self.inputs)["name"]
            found["run"] = f'echo half > {name}; test -e "$AGENTS_PLAN_DIR/{name}"'
        else:
            found |= {"tool": self.tool, "with": dict(self.inputs)}
        if self.needs:
            found["needs"] = list(self.needs)
        if self.shares:
            found["decision"] = self.shares
        elif self.influences or self.parent:
            about = {"question": f"how {self.id}", "chosen": self.tool}
            tied = {"influences": list(self.influences)} if self.influences else {}
            found["decision"] = about | tied | ({"parent": self.parent} if self.parent else {})
        return found


class Failed(Exception):
    """The step fails; `left` is what it leaves behind until somebody cleans up."""

    def __init__(self, left: State) -> None:
        super().__init__("failed")
        self.left = left


def done_by(step: Step, state: State, flags: frozenset[str]) -> State:
    """The state after the step."""
    here = dict(state[step.on])
    inputs = dict(step.inputs)
    result = {**state, step.on: here}
    try:
        _OPERATIONS[step.tool](here, inputs, flags)
    except _No:
        raise Failed(result) from None
    return result


class _No(Exception):
    pass


def _folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _below(tree: Mapping[str, Any], path: str) -> list[str]:
    return [name for name in tree if name.startswith(path + "/")]


def _make_folders(tree: dict[str, Any], path: str) -> None:
    for folder in _folders(path):
        if tree.get(folder) is not None:
            raise _No
        tree[folder] = None


def _is_folder(tree: Mapping[str, Any], path: str) -> bool:
    return path in tree and tree[path] is None


def _write(tree: dict[str, Any], inputs: dict[str, Any], _flags: frozenset[str]) -> None:
    _make_folders(tree, inputs["path"])
    if _is_folder(tree, inputs["path"]):
        raise _No
    tree[inputs["path"]] = inputs["content"].encode()


def _edit(tree: dict[str, Any], inputs: dict[str, Any], _flags: frozenset[str]) -> None:
    content = tree.get(inputs["path"])
    if content is None or content.count(inputs["old"].encode()) != 1:
        raise _No
    tree[inputs["path"]] = content.replace(inputs["old"].encode(), inputs["new"].encode())


def _delete(tree: dict[str, Any], inputs: dict[str, Any], _flags: frozenset[str]) -> None:
    path = inputs["path"]
    if path not in tree or (_below(tree, path) and not inputs["recursive"]):
        raise _No
    for name in (path, *_below(tree, path)):
        del tree[name]


def _move(tree: dict[str, Any], inputs: dict[str, Any], _flags: frozenset[str]) -> None:
    source, target = inputs["from"], inputs["to"]
    if source not in tree:
        raise _No
    _make_folders(tree, target)
    if target in tree and (_is_folder(tree, target) or _is_folder(tree, source)):
        raise _No
    if target.startswith(source + "/"):
        raise _No
    if source == target:
        return
    for name in (source, *_below(tree, source)):
        tree[target + name[len(source) :]] = tree.pop(name)


def _mkdir(tree: dict[str, Any], inputs: dict[str, Any], _flags: frozenset[str]) -> None:
    _make_folders(tree, inputs["path"])
    if tree.get(inputs["path"]) is not None:
        raise _No
    tree[inputs["path"]] = None


def _flag(tree: dict[str, Any], inputs: dict[str, Any], flags: frozenset[str]) -> None:
    if _is_folder(tree, inputs["name"]):
        raise _No
    tree[inputs["name"]] = b"half\n"
    if inputs["name"] not in flags:
        raise _No


def _sql(rows: dict[int, str], inputs: dict[str, Any], _flags: frozenset[str]) -> None:
    verb, key, *text = inputs["script"].replace("'", "").split(":")[1].split()
    if verb == "insert":
        if int(key) in rows:
            raise _No
        rows[int(key)] = text[0]
    elif verb == "append" and int(key) in rows:
        rows[int(key)] += text[0]
    elif verb == "drop":
        rows.pop(int(key), None)


_OPERATIONS = {
    "file.write": _write,
    "file.edit": _edit,
    "file.delete": _delete,
    "file.move": _move,
    "file.mkdir": _mkdir,
    "flag": _flag,
    "sql": _sql,
}


def script(verb: str, key: int, text: str) -> str:
    """SQL that `_sql` can read, for it says in a comment what it does."""
    does = {
        "insert": f"INSERT INTO t VALUES ({key}, '{text}')",
        "append": f"UPDATE t SET v = v || '{text}' WHERE k = {key}",
        "drop": f"DELETE FROM t WHERE k = {key}",
    }[verb]
    return f"{does} --:{verb} {key} {text}"


def wrote(before: State, after: State) -> frozenset[tuple[str, str]]:
    """Resource and path of everything that differs; a database counts as one."""
    found: set[tuple[str, str]] = set()
    for name in after:
        old, new = before[name], after[name]
        for path in old.keys() | new.keys():
            if (path in old, old.get(path)) != (path in new, new.get(path)):
                found.add((name, path if name in FOLDERS else ""))
    return frozenset(found)


def overlap(some: Iterable[tuple[str, str]], others: Iterable[tuple[str, str]]) -> bool:
    return any(
        a == b and (p == q or not p or not q or p.startswith(q + "/") or q.startswith(p + "/"))
        for a, p in some
        for b, q in others
    )


def taken_back(now: State, then: State, paths: frozenset[tuple[str, str]]) -> State:
    """Those paths as they were, all others as they are.

    A directory that is to go stays for what nobody named in it; a file that has to be a directory
    again for something inside it stays a file, unless it is named itself.
    """
    result = {name: dict(now[name]) for name in now}
    for name, path in sorted(paths):
        here, old = result[name], then[name]
        if name == DATABASE:
            result[name] = dict(old)
        elif path in old and old[path] is not None:
            for below in _below(here, path):
                del here[below]
            here[path] = old[path]
        elif path in here and here[path] is not None:
            del here[path]
        if name != DATABASE and path in old and old[path] is None:
            here[path] = None
    for name, path in sorted(paths, reverse=True):
        here = result[name]
        if name != DATABASE and path not in then[name] and not _below(here, path):
            here.pop(path, None)
    for name in FOLDERS:
        here = result[name]
        for path in sorted(here):
            if any(here.get(folder) is not None for folder in _folders(path)):
                del here[path]
            else:
                here.update(dict.fromkeys(_folders(path)))
    return result


@dataclass(frozen=True)
class Moment:
    """A plan at one point of its life."""

    state: State
    steps: tuple[Step, ...]
    done: frozenset[str] = frozenset()

    def same(self, other: "Moment") -> bool:
        return (self.state, self.steps, self.done) == (other.state, other.steps, other.done)


@dataclass(frozen=True)
class Entry:
    """An operation that undo can take back; None: a state that the model does not know."""

    before: Moment | None
    after: Moment | None


@dataclass(frozen=True)
class World:
    now: Moment
    head: Moment
    """Without edits by hand that no group has yet."""
    undo: tuple[Entry, ...] = ()
    redo: tuple[Entry, ...] = ()

    def did(self, before: Moment | None, after: Moment) -> "World":
        """Another operation, which ends redo."""
        return World(after, after, (*self.undo, Entry(before, after)), ())

    def at(self, moment: Moment) -> "World":
        return replace(self, now=moment, head=moment)

    def adopted(self) -> "World":
        """Edits by hand become an operation of their own."""
        return self if self.now.same(self.head) else self.did(self.head, self.now)


@dataclass
class Run:
    """One run through the steps that are not done: every point at which it could have ended."""

    points: list[Moment]
    before: dict[str, Moment] = field(default_factory=dict)
    after: dict[str, Moment] = field(default_factory=dict)
    failed: dict[str, Moment] = field(default_factory=dict)
    wrote: dict[str, frozenset[tuple[str, str]]] = field(default_factory=dict)

    @property
    def end(self) -> Moment:
        return self.points[-1]


def run(start: Moment, first: Moment, flags: frozenset[str], on_failure: str) -> Run:
    """`first`: where `rollback_plan` goes."""
    found = Run([start])
    now = start
    for step in start.steps:
        if step.id in now.done:
            continue
        found.before[step.id] = now
        try:
            state = done_by(step, now.state, flags)
        except Failed as failure:
            left = replace(now, state=failure.left)
            found.failed[step.id] = left
            whole = replace(first, steps=now.steps)
            after = {"rollback_step": now, "rollback_plan": whole, "stop": left}[on_failure]
            found.points.append(after)
            return found
        found.wrote[step.id] = wrote(now.state, state)
        now = replace(now, state=state, done=now.done | {step.id})
        found.after[step.id] = now
        found.points.append(now)
    return found


@dataclass(frozen=True)
class Deed:
    """A decision in force, as the rule of what hangs on it needs it."""

    id: str
    parent: str | None
    steps: frozenset[str]
    needs: frozenset[str]
    influences: frozenset[str]
    wrote: frozenset[tuple[str, str]]
    is_record: bool


def hanging(deeds: list[Deed], roots: set[str], cascade: bool = False) -> set[str]:
    """What goes with the roots; `deeds` are oldest first."""
    found = set(roots)
    first = min(n for n, deed in enumerate(deeds) if deed.id in found)
    later = deeds[first:]
    size = -1
    while size != len(found):
        size = len(found)
        for n, deed in enumerate(later):
            gone = [(m, other) for m, other in enumerate(later) if other.id in found]
            if (
                deed.parent in found
                or any(deed.needs & other.steps for _, other in gone)
                or any(
                    m < n and (other.influences & deed.steps or deed.influences & other.steps)
                    for m, other in gone
                )
                or any(overlap(deed.wrote, other.wrote) for _, other in gone)
                or (cascade and not deed.is_record)
            ):
                found.add(deed.id)
    return found
