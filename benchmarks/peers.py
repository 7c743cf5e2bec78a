"""Our checkpoints beside those of other tools, on the same trees, in the same run.

    python benchmarks/peers.py --sizes S,M,L --keep

writes the table to `benchmarks/results/`, which the README shows. With L use `--peers
shadow,cline,gemini` (about six minutes): opencode's first checkpoint alone takes longer there.

Each peer is a public tool's sequence of git commands, replayed on the very work tree that our plan
has as its sandbox, alternating with ours. Every round checks that the change was really captured,
and every restore that the tree is what it was. What counts are the ratios: times on one machine at
one moment mean little.
"""

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import platform
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).resolve().parents[1]))

from cleveragents.checkpoints.restoration import Restoration
from cleveragents.content.native import walker
from cleveragents.lease import (
    working_on,
)
from cleveragents.model.checkpoint import CheckpointType
from cleveragents.sandbox.git.worktree import GitWorktree
from cleveragents.workspace import open_workspace

SIZES = {"S": 300, "M": 10_000, "L": 100_000}
RESULTS = Path(__file__).parent / "results"


def build(root: Path, files: int, seed: int = 1) -> None:
    """Text, binaries, symlinks and ignored output; about 12 KB a file."""
    chance = random.Random(seed)
    noise = chance.randbytes(1 << 20)
    words = (" ".join(f"word{n % 977}" for n in range(40_000)) + "\n").encode()
    for number in range(files):
        folder = root / f"d{number // 1300}" / f"e{number // 13 % 100}"
        if number % 13 == 0:
            folder.mkdir(parents=True, exist_ok=True)
        size = chance.randint(200, 24_000)
        start = chance.randrange(1 << 17)
        kind = number % 20
        if kind == 0:
            (folder / f"f{number}.bin").write_bytes(noise[start : start + size])
        elif kind == 1:
            (folder / f"f{number}.lnk").symlink_to(f"f{number - 1}.bin")
        elif kind == 2:
            (folder / f"f{number}.out").write_bytes(words[start : start + size])
        else:
            (folder / f"f{number}.txt").write_bytes(b"%d " % number + words[start : start + size])
    (root / ".gitignore").write_text("*.out\n")


class Changer:
    """Five edits, three new, one deleted, one renamed; other files in each round."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = sorted(p for p in root.rglob("*.txt") if ".git" not in p.parts)
        self.turn = 0

    def change(self, count: int = 10) -> list[Path]:
        self.turn += 1
        chance = random.Random(self.turn)
        live = [p for p in chance.sample(self.names, min(len(self.names), count * 3)) if p.exists()]
        touched: list[Path] = []
        edits = max(count // 2, 1)
        for path in live[:edits]:
            path.write_bytes(b"turn %d\n" % self.turn + path.read_bytes()[:4000])
            touched.append(path)
        for number in range(count * 3 // 10):
            path = live[number].parent / f"new-{self.turn}-{number}.txt"
            path.write_text(f"new {self.turn} {number}\n" * 50)
            touched.append(path)
        live[edits].unlink()
        moved = live[edits + 1].with_name(f"moved-{self.turn}.txt")
        live[edits + 1].rename(moved)
        return [*touched, live[edits], live[edits + 1], moved]


def digest(paths: list[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes() if path.is_file() else b"-")
    return found.hexdigest()


class Peer:
    """A tool's way of checkpointing with a private git directory."""

    name = "shadow git"

    def __init__(self, work: Path, folder: Path) -> None:
        self.work = work
        self.git_dir = folder / f"{type(self).__name__}.git"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": os.fspath(folder),
            "GIT_DIR": os.fspath(self.git_dir),
            "GIT_WORK_TREE": os.fspath(work),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "p", "GIT_AUTHOR_EMAIL": "p@x",
            "GIT_COMMITTER_NAME": "p", "GIT_COMMITTER_EMAIL": "p@x",
        }  # fmt: skip
        subprocess.run(["git", "init", "-q"], env=self.env, cwd=work, check=True)
        (self.git_dir / "info").mkdir(exist_ok=True)
        (self.git_dir / "info" / "exclude").write_text(".git\n")

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run(
            ["git", *arguments], env=self.env, cwd=self.work, input=stdin, capture_output=True,
            check=False,
        )  # fmt: skip
        if done.returncode and arguments[0] != "check-ignore":
            raise RuntimeError(f"{self.name}: git {arguments}: {done.stderr.decode()}")
        return done.stdout

    def checkpoint(self) -> str:
        self.git("add", "-A")
        return self.git("write-tree").decode().strip()

    def restore(self, state: str) -> None:
        self.git("read-tree", "-u", "--reset", state)
        self.git("clean", "-fdq")


class Cline(Peer):
    name = "Cline"

    def checkpoint(self) -> str:
        self.git("add", ".", "--ignore-errors")
        self.git("commit", "-q", "-m", "m", "--allow-empty", "--no-verify")
        return self.git("rev-parse", "HEAD").decode().strip()

    def restore(self, state: str) -> None:
        self.git("clean", "-fdq")
        self.git("reset", "-q", "--hard", state)


class Gemini(Peer):
    name = "Gemini CLI"

    def checkpoint(self) -> str:
        self.git("add", ".")
        self.git("status", "--porcelain", "-b", "-u", "--null")
        self.git("commit", "-q", "-m", "m", "--allow-empty", "--no-verify")
        return self.git("rev-parse", "HEAD").decode().strip()

    def restore(self, state: str) -> None:
        self.git("restore", "--source", state, ".")
        self.git("clean", "-f", "-d", "-q")


class Opencode(Peer):
    name = "opencode"

    def checkpoint(self) -> str:
        changed = self.git("diff-files", "--name-only", "-z", "--", ".")
        listed = self.git(
            "ls-files", "--full-name", "--others", "--exclude-standard", "-z", "--", "."
        )
        paths = changed + listed
        if paths:
            self.git("check-ignore", "--no-index", "--stdin", "-z", stdin=paths)
            self.git(
                "add", "--all", "--sparse", "--pathspec-from-file=-", "--pathspec-file-nul",
                stdin=paths,
            )  # fmt: skip
        return self.git("write-tree").decode().strip()

    def restore(self, state: str) -> None:
        self.git("read-tree", "-u", "--reset", state)
        self.git("clean", "-fdq")


PEERS: dict[str, type[Peer]] = {
    "shadow": Peer, "cline": Cline, "gemini": Gemini, "opencode": Opencode
}  # fmt: skip


@contextlib.contextmanager
def first_timed(owner: object, name: str) -> Iterator[list[float]]:
    """How long each call of a method took, in ms, in a list."""
    method, spent = getattr(owner, name), []

    def watched(*arguments: object, **named: object) -> object:
        took, made = timed(lambda: method(*arguments, **named))
        spent.append(took)
        return made

    setattr(owner, name, watched)
    yield spent
    setattr(owner, name, method)


class Ours:
    """A plan over the tree, held by this process as an executor holds it."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.home = folder / "store"
        (folder / "plan.yaml").write_text(
            f"name: bench\nresources: {{work: {{kind: git-checkout, path: {source.name}}}}}\n"
            "policy: {max_checkpoints_per_plan: 200}\nsteps: [{id: nothing, run: 'true'}]\n"
        )
        os.environ["CLEVERAGENTS_SANDBOX_CARRY_LIMIT"] = "100GB"
        os.environ["CLEVERAGENTS_SANDBOX_CARRY_LIMIT_FILES"] = "1000000"
        os.environ["CLEVERAGENTS_SANDBOX_CONFINE"] = "off"
        self.stack = contextlib.ExitStack()
        self.ws = self.stack.enter_context(open_workspace(os.fspath(self.home)))
        service = self.ws.ctx.checkpoints
        with (
            first_timed(service, "create_checkpoint") as checkpoint,
            first_timed(GitWorktree, "create") as sandbox,
        ):
            self.plan = self.ws.run(os.fspath(folder / "plan.yaml"))
        self.first_checkpoint_ms, self.sandbox_ms = checkpoint[0], sandbox[0]
        self.root = Path(self.plan.sandboxes["work"])
        self.ctx = self.ws.ctx
        self.leased = self.stack.enter_context(
            working_on(self.ctx.store, self.plan.plan_id, "bench", self.ctx.now)
        )
        self.at_work = threading.Lock()
        self.over = threading.Event()
        self.reader = threading.Thread(target=self.listen, daemon=True)
        self.reader.start()
        self.checkpoint()

    def listen(self) -> None:
        """What the executor does while a tool runs: take in events, here of the peers' reading."""
        while not self.over.wait(0.02):
            self.settle()

    def settle(self) -> None:
        with self.at_work:
            self.ctx.manager.drain(self.plan.plan_id)

    def checkpoint(self) -> str:
        with self.at_work:
            made = self.ctx.checkpoints.create_checkpoint(CheckpointType.MANUAL, self.leased)
        return made.group_id

    def restore(self, group: str) -> None:
        todo = Restoration(group_id=group, plan={})
        with self.at_work:
            self.ctx.checkpoints.rollback_to_checkpoint(self.leased, todo)

    def stored(self) -> int:
        """Bytes of content and database, with nothing left in the write-ahead log."""
        with self.at_work, contextlib.closing(sqlite3.connect(self.home / "store.db")) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return on_disk(self.home / "content") + os.stat(self.home / "store.db").st_blocks * 512

    def close(self) -> None:
        self.over.set()
        self.reader.join()
        self.stack.close()


def timed(action: Callable[[], object]) -> tuple[float, object]:
    begin = time.perf_counter()
    result = action()
    return (time.perf_counter() - begin) * 1000, result


def cpu() -> float:
    """Processor time of this process and of all it waited for, in ms."""
    return (
        sum(
            found.ru_utime + found.ru_stime
            for found in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        * 1000
    )


def on_disk(*folders: Path) -> int:
    """Bytes that files take up."""
    return sum(
        os.lstat(f"{where}/{name}").st_blocks * 512
        for folder in folders
        for where, _, names in os.walk(folder)
        for name in names
    )


class Table:
    """Milliseconds by measurement and tool."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, list[float]]] = {}
        self.cpu: dict[str, dict[str, list[float]]] = {}

    def measure(self, row: str, tool: str, action: Callable[[], object]) -> object:
        before = cpu()
        spent, result = timed(action)
        self.add(row, tool, spent)
        self.cpu.setdefault(row, {}).setdefault(tool, []).append(cpu() - before)
        return result

    def add(self, row: str, tool: str, value: float) -> None:
        self.rows.setdefault(row, {}).setdefault(tool, []).append(value)

    def medians(self) -> dict[str, dict[str, float]]:
        return {
            row: {tool: statistics.median(v) for tool, v in tools.items()}
            for row, tools in self.rows.items()
        }

    def spread(self) -> dict[str, dict[str, list[float]]]:
        return {
            row: {tool: [round(min(v), 2), round(max(v), 2)] for tool, v in tools.items()}
            for row, tools in self.rows.items()
        }


def measure(size: str, rounds: int, peers: list[str], folder: Path) -> dict[str, object]:
    source = folder / "tree"
    source.mkdir()
    build(source, SIZES[size])
    quiet = {"cwd": source, "check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(["git", "init", "-q", "-b", "main", "."], **quiet)
    subprocess.run(["git", "add", "-A"], **quiet)
    subprocess.run(
        ["git", "-c", "user.name=b", "-c", "user.email=b@x", "commit", "-qm", "base"], **quiet
    )
    checked_out, carried = by_hand(source, folder / "checkout")
    os.sync()
    ours = Ours(folder, source)
    # Not before: on ext4 without a journal, files are made slowly where many were just deleted.
    subprocess.run(["git", "worktree", "remove", "--force", "../checkout"], cwd=source, check=True)
    theirs = [PEERS[name](ours.root, folder) for name in peers]
    table = Table()
    for peer in theirs:
        table.measure("first checkpoint", peer.name, peer.checkpoint)
    table.add("first checkpoint", "ours", ours.first_checkpoint_ms)
    table.add("first checkpoint", "git worktree add", checked_out)
    table.add("sandbox made", "ours", ours.sandbox_ms)
    table.add("sandbox made", "git worktree add and cp of the rest", checked_out + carried)
    ours.checkpoint()
    changer = Changer(ours.root)
    for turn in range(rounds):
        one_round(table, ours, theirs, changer, turn)
    for _ in range(max(rounds // 3, 1)):
        changer.change(1000 if len(changer.names) > 3000 else 100)
        for peer in theirs:
            table.measure("many files changed", peer.name, peer.checkpoint)
        ours.settle()
        table.measure("many files changed", "ours", ours.checkpoint)
    disk = growth(ours, theirs, changer)
    one_big_file(table, ours, theirs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    new_process(table, ours, theirs, changer, rounds)
    return {
        "files": SIZES[size],
        "median_ms": table.medians(),
        "spread_ms": table.spread(),
        "cpu_ms": {
            row: {tool: statistics.median(v) for tool, v in tools.items()}
            for row, tools in table.cpu.items()
        },
        "disk_bytes_per_checkpoint": disk,
        "peak_rss_mb": peak,
    }


def by_hand(source: Path, target: Path) -> tuple[float, float]:
    """What checking the commit out takes, and copying what is not in it."""
    checked_out, _ = timed(
        lambda: subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", os.fspath(target)],
            cwd=source, check=True, stdout=subprocess.DEVNULL,
        )
    )  # fmt: skip
    rest = subprocess.run(
        ["git", "ls-files", "-o", "-z"], cwd=source, check=True, stdout=subprocess.PIPE
    ).stdout
    copy = ["xargs", "-0", "-r", "cp", "-a", "--parents", "-t", os.fspath(target)]
    copied, _ = timed(lambda: subprocess.run(copy, cwd=source, input=rest, check=True))
    return checked_out, copied


def growth(ours: Ours, theirs: list[Peer], changer: Changer, count: int = 5) -> dict[str, int]:
    """Bytes on disk that one checkpoint of ten changes adds."""
    tools = {peer.name: (peer.checkpoint, lambda p=peer: on_disk(p.git_dir)) for peer in theirs}
    tools["ours"] = (ours.checkpoint, ours.stored)
    before = {name: size() for name, (_, size) in tools.items()}
    for _ in range(count):
        changer.change()
        for checkpoint, _ in tools.values():
            checkpoint()
    return {name: (size() - before[name]) // count for name, (_, size) in tools.items()}


def one_round(table: Table, ours: Ours, theirs: list[Peer], changer: Changer, turn: int) -> None:
    for peer in theirs:
        table.measure("nothing changed", peer.name, peer.checkpoint)
    ours.settle()
    table.measure("nothing changed", "ours", ours.checkpoint)
    before = ours.checkpoint()
    states = [peer.checkpoint() for peer in theirs]
    touched = changer.change()
    changed = digest(touched)
    order = [*theirs, None] if turn % 2 else [None, *theirs]
    for peer in order:
        tool = peer or ours
        name = peer.name if peer else "ours"
        ours.settle()
        table.measure("10 changes", name, tool.checkpoint)
    after = ours.checkpoint()
    for peer, state in zip(theirs, states, strict=True):
        kept = peer.checkpoint()
        table.measure("rollback", peer.name, lambda p=peer, s=state: p.restore(s))
        assert digest(touched) != changed, f"{peer.name} restored nothing"
        peer.restore(kept)
        assert digest(touched) == changed, f"{peer.name} did not bring it back"
    ours.checkpoint()
    ours.settle()
    table.measure("rollback", "ours", lambda: ours.restore(before))
    assert digest(touched) != changed, "ours restored nothing"
    ours.restore(after)
    assert digest(touched) == changed, "ours did not bring it back"


def one_big_file(table: Table, ours: Ours, theirs: list[Peer]) -> None:
    big = ours.root / "big.bin"
    chance = random.Random(3)
    with big.open("wb") as file:
        for _ in range(50):  # all at once would count as memory of ours
            file.write(chance.randbytes(1_000_000))
    for tool in (*theirs, ours):
        tool.checkpoint()
    for turn in range(2):
        with big.open("r+b") as file:
            file.seek(1_000_000 * (turn + 1))
            file.write(b"!")
        for peer in theirs:
            table.measure("one byte of 50 MB", peer.name, peer.checkpoint)
        ours.settle()
        table.measure("one byte of 50 MB", "ours", ours.checkpoint)
    big.unlink()
    for tool in (*theirs, ours):
        tool.checkpoint()


def new_process(
    table: Table, ours: Ours, theirs: list[Peer], changer: Changer, rounds: int
) -> None:
    """The command itself, started for one checkpoint."""
    plan, home = ours.plan.plan_id, os.fspath(ours.home)
    ours.close()
    command = [sys.executable, "-m", "cleveragents", "plan", "checkpoint", "create", plan, "--json"]
    env = {**os.environ, "CLEVERAGENTS_HOME": home}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    for turn in range(max(rounds, 4)):
        changer.change()
        for peer in theirs:
            table.measure("new process", peer.name, peer.checkpoint)
        row = "new process" if turn else "new process, the first after a running plan"
        done = table.measure(
            row,
            "ours",
            lambda: subprocess.run(command, env=env, capture_output=True, text=True, check=True),
        )
        assert json.loads(done.stdout)["data"]["checkpoint_id"]


def ratios(medians: dict[str, dict[str, float]]) -> dict[str, float]:
    """How many times quicker ours is than the fastest peer."""
    found: dict[str, float] = {}
    for row, tools in medians.items():
        others = [value for tool, value in tools.items() if tool != "ours"]
        if "ours" in tools and others:
            found[row] = min(others) / tools["ours"]
    return found


def report(result: dict[str, object]) -> str:
    lines = [
        f"# {result['date']}, {result['machine']}, commit {result['commit']}",
        "",
        f"Compiled walker: {result['accelerated']}.",
        "Ratios to the fastest peer on the same tree in the same run; above 1 is quicker.",
        "",
    ]
    for size, one in result["sizes"].items():
        disk = one["disk_bytes_per_checkpoint"]
        least = min(value for tool, value in disk.items() if tool != "ours")
        lines += [
            f"## {size}: {one['files']:,} files",
            "",
            "| | ours ms (least-most) | fastest other ms (least-most) | ratio | CPU ms, both |",
            "| --- | --- | --- | --- | --- |",
            *(line_of(one, row) for row in one["ratios"]),
            "",
            f"Peak memory: {one['peak_rss_mb']} MB.",
            f"Disk per checkpoint of ten changes: ours {disk['ours'] / 1000:.0f} KB,",
            f"the least of the others {least / 1000:.0f} KB.",
            "",
        ]
    sizes = result["sizes"]
    if {"S", "L"} <= sizes.keys():
        small, large = (sizes[size]["median_ms"] for size in ("S", "L"))
        rows = ("nothing changed", "10 changes", "rollback")
        grown = [f"{row} {large[row]['ours'] / small[row]['ours']:.1f}x" for row in rows]
        lines += [f"Our own cost from S to L: {', '.join(grown)}.", ""]
    return "\n".join(lines)


def line_of(one: dict[str, object], row: str) -> str:
    tools, spread, spent = one["median_ms"][row], one["spread_ms"][row], one["cpu_ms"].get(row, {})
    best = min((tool for tool in tools if tool != "ours"), key=lambda tool: tools[tool])
    processor = " / ".join(
        f"{spent[tool]:.1f}" if tool in spent else "-" for tool in ("ours", best)
    )
    shown = [f"{tools[tool]:.1f} ({spread[tool][0]}-{spread[tool][1]})" for tool in ("ours", best)]
    return f"| {row} | {shown[0]} | {best} {shown[1]} | {one['ratios'][row]:.1f}x | {processor} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="S,M")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", default="shadow,cline,gemini,opencode")
    parser.add_argument("--keep", action="store_true", help="write the table to results/")
    parser.add_argument("--where", help="a folder on the file system to measure; else that of /tmp")
    parser.add_argument("--called", default="", help="a word for the name of the table")
    given = parser.parse_args()
    here = Path(__file__).parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True,
        check=False,
    ).stdout.strip()  # fmt: skip
    result: dict[str, object] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.system()}, Python {sys.version.split()[0]}",
        "commit": commit,
        "accelerated": walker.ACCELERATED,
        "sizes": {},
    }
    for size in given.sizes.split(","):
        with tempfile.TemporaryDirectory(prefix="agents-peers-", dir=given.where) as folder:
            one = measure(size, given.rounds, given.peers.split(","), Path(folder))
        one["ratios"] = ratios(one["median_ms"])
        result["sizes"][size] = one
        print(report(result), flush=True)
    if given.keep:
        RESULTS.mkdir(exist_ok=True)
        name = "-".join(filter(None, (result["date"], commit, given.called)))
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / f"{name}.md").write_text(report(result) + "\n")


if __name__ == "__main__":
    main()
