"""Runs a page of the documentation as it is written, and compares what it says is printed.

Of a page the fenced blocks count, from top to bottom, in one shell and one folder:

- `sh`: run; every line has to succeed
- `text` with `$ ` lines: each command is run, and what follows it is what it prints; a line `...`
  stands for any lines that were cut
- `python`: run; a `text` block without `$ ` after it is what it prints
- a block after a paragraph like "`plan.yaml`, the plan:", or with its path as a comment in the
  first line, is written to that file; a plan without either to `plan.yaml`
- no language, `mermaid`: a drawing or a form, neither run nor compared

A comment right before a block says more: `<!-- file: PATH -->`, `<!-- not run: WHY -->`, and
`<!-- needs: bwrap -->` where not every machine has it. A comment
`<!-- set-up ... -->` has shell lines that readers do not need to see (`$ROOT`: this project).

Ids, times, sizes and hashes differ from run to run and are not compared, nor is how wide a column
is. An id that a command names is the one that was printed in its place.
"""

import difflib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cleveragents.tools.confinement import bwrap
from tests.harness import PATIENCE, command, private_environment

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^<!-- set-up\n(?P<setup>.*?)^-->$"
    r"|(?:^<!-- (?P<mark>file|needs|not run): (?P<told>[^\n]*) -->\n"
    r"|^`(?P<name>[\w./~][\w./~-]*\.\w+)`[^\n]*:\n\n)?"
    r"^```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.M | re.S,
)
PATH_COMMENT = re.compile(r"# ([\w./~-]+\.\w+)\n")
DRAWN = ("", "mermaid")
HERE = {"bwrap": lambda: bwrap.probe().works}
CUT = "..."
MARK = "@-@"
HOME = "/home/ada"
IDS = re.compile(r"\b(?:[0-9A-HJKMNP-TV-Z]{26}|[0-9A-HJKMNP-TV-Z]{6}|[0-9a-f-]{36})\b")
DIFFERS = (
    (r"\b[0-9A-HJKMNP-TV-Z]{26}\b", "ID"),
    (r"\b[0-9A-HJKMNP-TV-Z]{6}\b\*?", "END"),
    (r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "UUID"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(\+00:00|Z)?", "TIME"),
    (r"\b\d\d:\d\d:\d\d\b", "CLOCK"),
    (r"just now|\d+(s|m|min|h) ago", "WHEN"),
    (r"^Date: .*$", "DATE"),
    (r"\b[0-9a-f]{40}\b", "COMMIT"),
    (r"\b[0-9a-z]?[0-9a-f]{64}\b|\b[0-9a-f]{16}\b", "HASH"),
    (r"\b[0-9a-f]{7}\.\.[0-9a-f]{7}\b", "BLOBS"),
    (r"\b[\d.]+ [KMG]?B\b", "SIZE"),
    (r"\b[\d.]+ ?m?s\b", "DURATION"),
    (r"\"duration_ms\": [\d.]+", "DURATION"),
    (r"/tmp/agents-demo-\w+", "DEMO"),
    (r"^ +[~^]+$", "^"),  # where in the line: each Python points in its own way
    (r"[-─━]{4,}", "----"),
    (r" +", " "),
)


@dataclass(frozen=True)
class Block:
    kind: str
    """`file`, `sh`, `text`, `python`, `output` (of the python before), `drawn` or `not run`."""
    body: str
    start: int
    """Where the body begins in the page."""
    told: str = ""
    """The path of a file, or why it is not run."""


def blocks_of(page: str) -> list[Block]:
    found: list[Block] = []
    for match in BLOCK.finditer(page):
        if match["setup"] is not None:
            found.append(Block("sh", match["setup"], match.start("setup")))
            continue
        language, body = match["language"], match["body"]
        path = PATH_COMMENT.match(body)
        kind, told = language, match["told"] or match["name"] or ""
        if match["mark"] == "needs":
            kind = language if HERE[told]() else "not run"
            told = f"{told} cannot be used here"
        elif match["mark"]:
            kind = match["mark"]
        elif told or path:
            kind, told = "file", told or path[1]  # pyright: ignore[reportOptionalSubscript]
        elif language == "yaml" and body.startswith("name:"):
            kind, told = "file", "plan.yaml"
        elif language in DRAWN:
            kind = "drawn"
        elif language == "text" and not body.startswith("$ "):
            kind = "output" if found and found[-1].kind == "python" else "not known"
        found.append(Block(kind, body, match.start("body"), told))
    return found


def commands_of(block: str) -> list[tuple[str, str]]:
    """Each command of a block of text with what it prints."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:-1], ""))
        elif found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[:-1]}", "")
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def compared(text: str) -> list[str]:
    for pattern, name in DIFFERS:
        text = re.sub(pattern, name, text, flags=re.M)
    return [line.rstrip() for line in text.splitlines()]


def place_of(written: list[str], printed: list[str]) -> list[int] | None:
    """The number of the printed line for each written one (a cut: of what follows it), if all are
    there (pure)."""
    places: list[int] = []
    at, free = 0, False
    for number, line in enumerate(written):
        if line == CUT:
            places.append(at)
            free = True
            continue
        if free:
            rest = written[number:]
            upto = rest.index(CUT) if CUT in rest else len(rest)
            last = len(printed) - upto
            starts = range(at, last + 1) if CUT in rest else range(max(at, last), last + 1)
            part = rest[:upto]
            at = next((s for s in starts if printed[s : s + upto] == part), -1)
            if at < 0:
                return None
            free = False
        if at >= len(printed) or printed[at] != line:
            return None
        places.append(at)
        at += 1
    return places if free or at == len(printed) else None


def cut_like(written: list[str], printed: list[str]) -> list[str]:
    """What is printed now, cut where what is written was cut (pure)."""
    pieces: list[list[str]] = [[]]
    for line in written:
        if line == CUT:
            pieces.append([])
        else:
            pieces[-1].append(line)
    if len(pieces) == 1:
        return printed
    head, *middle, tail = pieces
    lines, at = [*printed[: len(head)], CUT], len(head)
    end = max(at, len(printed) - len(tail))
    for piece in middle:
        starts = range(at, max(at, end - len(piece)) + 1)
        text = "\n".join(compared("\n".join(piece)))

        def like(start: int, size: int = len(piece), text: str = text) -> float:
            now = "\n".join(compared("\n".join(printed[start : start + size])))
            return difflib.SequenceMatcher(None, text, now).ratio()

        best = max(starts, key=like)
        at = min(end, best + len(piece))
        lines += [*printed[best:at], CUT]
    return lines + printed[end:]


@dataclass
class Said:
    """One command or program of a page: what the page has, and what was printed now."""

    typed: str
    written: str
    printed: str
    start: int
    """Where what is written begins in the page."""

    @property
    def holds(self) -> bool:
        return place_of(compared(self.written), compared(self.printed)) is not None

    def difference(self) -> str:
        lines = difflib.unified_diff(
            compared(self.written), compared(self.printed), "written", "printed", lineterm="", n=2
        )
        return "\n".join((f"$ {self.typed}", *lines))


class Wrong(Exception):
    """A page that cannot be run."""


@dataclass
class Reader:
    """Somebody who types a page into a shell."""

    folder: Path
    shown: str
    """What the page calls the folder."""
    env: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    """Ids as written on the page, and as printed now."""

    def __post_init__(self) -> None:
        self.home = self.folder / "home"
        self.work = self.folder / "work"
        for path in (self.home / ".config", self.work):
            path.mkdir(parents=True)
        self.shell = subprocess.Popen(
            ["bash", "--norc"],
            env=self._environment(),
            cwd=self.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _environment(self) -> dict[str, str]:
        config = self.folder / "gitconfig"
        config.write_text("[user]\nname = Ada\nemail = ada@example.org\n")
        private = private_environment(self.folder)
        ours = ("GIT_AUTHOR", "GIT_COMMITTER", "XDG_", "CLEVERAGENTS_HOME")
        private = {k: v for k, v in private.items() if not k.startswith(ours)}
        return private | {
            "PATH": f"{self.home}/bin:{Path(command()).parent}:{Path(sys.executable).parent}:"
            "/usr/bin:/bin",
            "GIT_CONFIG_GLOBAL": str(config),
            "ROOT": str(ROOT),
            **self.env,
        }

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.shell.kill()
        self.shell.communicate()

    def here(self, text: str) -> str:
        """What a page has, with the names of this run."""
        text = IDS.sub(lambda found: self.ids.get(found[0], found[0]), text)
        return text.replace(self.shown, str(self.work)).replace(HOME, str(self.home))

    def run(self, script: str) -> tuple[str, int]:
        """What a piece of shell prints, and its exit code."""
        assert self.shell.stdin
        assert self.shell.stdout
        timer = threading.Timer(PATIENCE, self.shell.kill)
        timer.start()
        try:
            self.shell.stdin.write(f"{{ {script}\n}} </dev/null\nprintf '\\n{MARK} %d\\n' $?\n")
            self.shell.stdin.flush()
            lines: list[str] = []
            while not lines or not lines[-1].startswith(MARK):
                lines.append(self.shell.stdout.readline())
                if not lines[-1]:
                    raise Wrong(f"the shell ended: {script}\n{''.join(lines)}")
        except BrokenPipeError:
            raise Wrong(f"the shell ended before: {script}") from None
        finally:
            timer.cancel()
        code = int(lines.pop().split()[1])
        text = "".join(lines)[:-1]
        text = re.sub(r"^  copying .*\n", "", text, flags=re.M)  # only if it takes long
        return text.replace(str(self.work), self.shown).replace(str(self.home), HOME), code

    def must(self, script: str) -> None:
        text, code = self.run(script)
        if code:
            raise Wrong(f"exit code {code}: {script}\n{text}")

    def learn(self, said: Said) -> None:
        """Which ids stand for those of the page, from here on."""
        written, printed = said.written.splitlines(), said.printed.splitlines()
        places = place_of(compared(said.written), compared(said.printed))
        if places is not None:
            pairs = [(line, at) for line, at in zip(written, places, strict=True) if line != CUT]
        else:
            old, new = compared(said.written), compared(said.printed)
            codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
            pairs = [
                (written[i], j)
                for tag, i1, i2, j1, j2 in codes
                if tag in {"equal", "replace"}
                for i, j in zip(range(i1, i2), range(j1, j2), strict=False)
            ]
        for line, at in pairs:
            self.ids.update(zip(IDS.findall(line), IDS.findall(printed[at]), strict=False))

    def read(self, page: str) -> Iterator[Said]:
        """Follow a page to its end."""
        blocks = blocks_of(page)
        for number, block in enumerate(blocks):
            if block.kind == "file":
                path = Path(self.here(block.told.replace("~", HOME)))
                path = self._folder_now() / path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self.here(block.body))
            elif block.kind == "sh":
                for line in joined(self.here(block.body)):
                    self.must(line)
            elif block.kind == "text":
                yield from self._typed(block)
            elif block.kind == "python":
                (self.folder / "program.py").write_text(self.here(block.body))
                text, code = self.run(f"python3 {self.folder / 'program.py'}")
                after = blocks[number + 1] if number + 1 < len(blocks) else block
                if after.kind == "output":
                    yield Said("python", after.body, text, after.start)
                elif code:
                    raise Wrong(f"exit code {code}: {block.body}\n{text}")
            elif block.kind not in {"drawn", "not run", "output"}:
                raise Wrong(f"neither a command, a file nor said not to be run:\n{block.body}")

    def _folder_now(self) -> Path:
        return Path(self.here(self.run("pwd")[0].strip()))

    def _typed(self, block: Block) -> Iterator[Said]:
        at = block.start
        for typed, written in commands_of(block.body):
            at += len(f"$ {typed}\n")
            said = Said(typed, written, self.run(self.here(typed))[0], at)
            self.learn(said)
            yield said
            at += len(written)


def joined(lines: str) -> list[str]:
    """The commands of a script, one by one: what bash reads as one stays one."""
    found: list[str] = []
    whole = ""
    for line in lines.splitlines():
        whole += line + "\n"
        done = subprocess.run(["bash", "-n"], input=whole, capture_output=True, text=True)  # noqa: PLW1510
        if done.returncode == 0 and not done.stderr and not line.endswith("\\"):
            found.append(whole)
            whole = ""
    return found + ([whole] if whole else [])


def rewritten(page: str, said: list[Said], ids: dict[str, str]) -> str:
    """The same page with what is printed now; ids that it had stay as they are (pure)."""
    known = {now: then for then, now in ids.items()}
    parts: list[str] = []
    at = 0
    for each in said:
        parts.append(page[at : each.start])
        if each.holds:
            parts.append(each.written)
        else:
            printed = IDS.sub(lambda found: known.get(found[0], found[0]), each.printed)
            lines = cut_like(each.written.splitlines(), printed.splitlines())
            parts += [f"{line}\n" for line in lines]
        at = each.start + len(each.written)
    return "".join(parts) + page[at:]
