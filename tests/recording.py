"""A session in a terminal, recorded as a picture: what README shows.

The commands run in a pseudo-terminal, a terminal emulator (pyte) keeps what would be seen, and rich
draws it. `python -m tests.test_pages --write` draws it anew if it is no longer true.
"""

import fcntl
import itertools
import os
import pty
import random
import re
import shutil
import string
import struct
import subprocess
import termios
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

from tests.harness import PATIENCE, command, private_environment
from tests.pages import HOME, compared
from tests.scratch import query

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "session.svg"
COLUMNS, LINES = 104, 300
PROMPT = "$ "
PLAN = """\
name: rename
resources:
  app: {kind: git-checkout, path: shop}
  db:  {kind: sqlite, path: shop.db}
steps:
  - {id: code, on: app, run: "sed -i s/users/people/ api.py"}
  - {id: schema, tool: sql, on: db, with: {script: "ALTER TABLE users RENAME TO people"}}
  - {id: notes, on: app, run: "rm -r notes"}
"""
SESSION = (
    "agents plan run plan.yaml",
    "agents plan checkpoints",
    "agents undo",
    "agents plan redo",
    "agents diff --stat",
    "agents apply --yes",
)
COLOURS = {"brown": "yellow", "default": None}
"""pyte's names of colours that rich has others for."""


def make_shop(folder: Path, env: dict[str, str]) -> None:
    (folder / "shop" / "notes").mkdir(parents=True)
    (folder / "shop" / "api.py").write_text('QUERY = "SELECT name FROM users"\n')
    (folder / "shop" / "notes" / "users.md").write_text("The users of the shop.\n")
    (folder / "plan.yaml").write_text(PLAN)
    query(folder / "shop.db", "CREATE TABLE users (name TEXT)")
    for argv in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "shop"]):
        subprocess.run(["git", *argv], cwd=folder / "shop", env=env, check=True)


def in_a_terminal(typed: str, folder: Path, env: dict[str, str]) -> bytes:
    """All that a command writes to its terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    with subprocess.Popen(
        ["bash", "-c", typed], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=env
    ) as process:
        os.close(theirs)
        data = b""
        try:
            while part := os.read(ours, 65536):
                data += part
        except OSError:  # how the end of a pseudo-terminal reads
            pass
        os.close(ours)
        process.wait(PATIENCE)
    return data


def seen(data: bytes) -> list[Text]:
    """The lines that a terminal shows after all that, with their colours."""
    screen = pyte.Screen(COLUMNS, LINES)
    pyte.ByteStream(screen).feed(data)
    lines: list[Text] = []
    for number in range(LINES):
        cells = [screen.buffer[number][column] for column in range(COLUMNS)]
        line = Text()
        for style, same in itertools.groupby(cells, style_of):
            line.append("".join(cell.data for cell in same), style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def style_of(cell: pyte.screens.Char) -> Style:
    bright = cell.fg.startswith("bright")
    name = cell.fg.removeprefix("bright")
    colour = COLOURS.get(name, name)
    if colour and re.fullmatch(r"[0-9a-f]{6}", colour):
        colour = f"#{colour}"
    elif colour and bright:
        colour = f"bright_{colour}"
    return Style(
        color=colour, bold=cell.bold, italic=cell.italics, underline=cell.underscore,
        reverse=cell.reverse,
    )  # fmt: skip


@contextmanager
def short_folder() -> Generator[Path]:
    """A home whose path is as long as the one that is shown: frames keep their width."""
    while True:
        folder = Path("/tmp", "".join(random.choices(string.ascii_lowercase, k=len(HOME) - 5)))
        try:
            folder.mkdir(mode=0o700)
            break
        except FileExistsError:
            continue
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def record() -> list[Text]:
    """The whole session, with a prompt before each command."""
    lines: list[Text] = []
    with short_folder() as home:
        env = private_environment(home)
        ours = ("XDG_", "CLEVERAGENTS_", "NO_COLOR")
        env = {k: v for k, v in env.items() if not k.startswith(ours)}
        env |= {"HOME": str(home), "TERM": "xterm-256color", "PAGER": "cat"}
        env |= {"PATH": f"{Path(command()).parent}:/usr/bin:/bin"}
        make_shop(home / "work", env)
        for typed in SESSION:
            lines += [Text(), Text.assemble((PROMPT, "bold green"), (typed, "bold"))]
            data = in_a_terminal(typed, home / "work", env)
            lines += seen(data.replace(bytes(home), HOME.encode()))
    return lines[1:]


def drawn(lines: list[Text]) -> str:
    """The picture, with what it shows as text too: for who cannot see it, and for the test."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    console.file.close()
    svg = console.export_svg(title="agents", unique_id="session")
    # the address of a font: a picture asks nobody for anything
    svg = re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.S)
    text = "\n".join(line.plain for line in lines).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"(<svg [^>]*>)", lambda tag: f"{tag[1]}\n<desc>\n{text}\n</desc>", svg, count=1)


def holds(lines: list[Text]) -> bool:
    """Whether the picture shows what is printed now."""
    now = "\n".join(line.plain for line in lines)
    return [frameless(line) for line in compared(written())] == [
        frameless(line) for line in compared(now)
    ]


def frameless(line: str) -> str:
    """Frames are as wide as what is in them, which differs."""
    return re.sub(r"[─│╭╮╰╯ ]+", " ", line).strip()


def written() -> str:
    """What the picture shows, as text."""
    found = re.search(r"<desc>\n(.*?)\n</desc>", PICTURE.read_text(), re.S)
    assert found, f"{PICTURE} has no description"
    return found[1].replace("&lt;", "<").replace("&amp;", "&")
