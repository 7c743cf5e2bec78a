"""Every command in the documentation is run, and prints what the page says (tests/pages.py).

`python -m tests.test_pages --write [PAGE ...]` writes what is printed now into the pages; without
a page also usage, options and settings (tests/reference.py) and the picture (tests/recording.py).
"""

import re
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import reference
from tests.pages import BLOCK, ROOT, Reader, Said, Wrong, blocks_of, cut_like, place_of, rewritten
from tests.pgserver import Shop, binaries, running, shop_on

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("sh", "text", "python", "file", "not known")
FOLLOWED = [page for page in PAGES if any(b.kind in RUN for b in blocks_of(page.read_text()))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def reader(page: Path, folder: Path, shop: Shop | None = None) -> Reader:
    """Somebody who reads the page; a page about a server has one."""
    env = {"DATABASE_URL": shop.full_url, "PG": str(binaries())} if shop else {}
    return Reader(folder, f"/tmp/{page.stem.lower()}", env)


def about_a_server(page: Path) -> bool:
    return "$DATABASE_URL" in page.read_text()


@pytest.mark.parametrize("page", FOLLOWED, ids=name_of)
def test_a_page_prints_what_it_says(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shop: Shop | None = request.getfixturevalue("shop") if about_a_server(page) else None
    with reader(page, tmp_path, shop) as somebody:
        differences = [s.difference() for s in somebody.read(page.read_text()) if not s.holds]
    again = f"python -m tests.test_pages --write {name_of(page)}"
    assert not differences, "\n\n".join([*differences, f"if that is right: {again}"])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_not_run_is_few_and_says_why(page: Path) -> None:
    blocks = blocks_of(page.read_text())
    assert all(len(b.told.split()) > 2 for b in blocks if b.kind == "not run")
    drawn = [b.body for b in blocks if b.kind == "drawn"]
    assert not [text for text in drawn if text.startswith(("$ ", "agents ", "pip "))]
    assert not [b.body for b in blocks if b.kind in {"sh", "text"} and "pip install" in b.body]
    fenced = [match for match in BLOCK.finditer(page.read_text()) if match["setup"] is None]
    fences = re.findall(r"^\s*```", page.read_text(), re.M)
    assert len(fences) == 2 * len(fenced), "a block that is not seen"


def test_the_picture_of_a_session_is_what_a_terminal_shows() -> None:
    pytest.importorskip("pyte")
    from tests import recording

    lines = recording.record()
    now = "\n".join(line.plain for line in lines)
    assert recording.holds(lines), f"python -m tests.test_pages --write\n{now}"
    assert "http" not in re.sub(r"xmlns=\S+|<!--.*?-->", "", recording.PICTURE.read_text())


PAGE = """\
# A page

`a.txt`, a file:

```text
one
two
```

```text
$ cat a.txt
one
two
$ echo 01M7JW346TD3YQ1E7FQNQQTXRE > id; tr 6 7 < id
01M7JW346TD3YQ1E7FQNQQTXRE
$ test 01M7JW346TD3YQ1E7FQNQQTXRE = 01M7JW347TD3YQ1E7FQNQQTXRE && seq 9
1
...
9
```

<!-- set-up
cat > b.txt <<X
hidden
X
-->
```python
print(open("b.txt").read())
```

```text
hidden

```
"""


def test_a_page_is_followed_with_its_files_ids_and_cuts(tmp_path: Path) -> None:
    with Reader(tmp_path, "/tmp/page") as somebody:
        said = list(somebody.read(PAGE))
    assert [s.typed.split()[0] for s in said] == ["cat", "echo", "test", "python"]
    assert all(s.holds for s in said)


def test_what_is_no_longer_true_is_noticed_and_written_anew(tmp_path: Path) -> None:
    page = PAGE.replace("one\ntwo\n$", "one\nthree\n$").replace("seq 9", "seq 12")
    with Reader(tmp_path / "a", "/tmp/page") as somebody:
        said = list(somebody.read(page))
        now = rewritten(page, said, somebody.ids)
    assert [s.typed.split()[0] for s in said if not s.holds] == ["cat", "test"]
    assert "-three\n+two" in said[0].difference()
    assert "1\n...\n12\n" in now
    with Reader(tmp_path / "b", "/tmp/page") as somebody:
        assert all(s.holds for s in somebody.read(now))


def test_a_command_that_fails_and_a_block_of_no_use_are_noticed(tmp_path: Path) -> None:
    with Reader(tmp_path / "a", "/tmp/page") as somebody, pytest.raises(Wrong, match="exit code 1"):
        list(somebody.read("```sh\ntrue\nfalse\n```\n"))
    with Reader(tmp_path / "b", "/tmp/page") as somebody, pytest.raises(Wrong, match="neither"):
        list(somebody.read("```text\nerror: something\n```\n"))


@pytest.mark.parametrize(
    ("written", "printed", "holds"),
    [
        ("a b", "a b", True),
        ("a", "a b", False),
        ("a ... c", "a b b c", True),
        ("a ... c", "a c", True),
        ("a ... c", "a c d", False),
        ("... c d", "a c c d", True),
        ("a ... c ... e", "a b c d e", True),
        ("a ... e ... c", "a b c d e", False),
        ("a ...", "a b", True),
        ("a ...", "b", False),
    ],
)
def test_a_cut_stands_for_any_lines(written: str, printed: str, holds: bool) -> None:
    assert (place_of(written.split(), printed.split()) is not None) is holds


def test_what_is_written_anew_is_cut_in_the_same_places() -> None:
    now = cut_like(
        ["one", "...", "five", "six", "...", "nine"],
        ["1", "2", "3", "4", "five", "seven", "8", "9"],
    )
    assert now == ["1", "...", "five", "seven", "...", "9"]


def write(pages: list[Path]) -> bool:
    """Write pages anew; whether all of them could be followed."""
    wrong = False
    for page in pages:
        text = page.read_text()
        with ExitStack() as stack:
            made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = stack.enter_context(running()) if about_a_server(page) else None
            shop = stack.enter_context(shop_on(server)) if server else None
            somebody = stack.enter_context(reader(page, made, shop))
            try:
                said: list[Said] = list(somebody.read(text))
            except Wrong as error:
                print(f"{name_of(page)}: {error}")
                wrong = True
                continue
            differ = [each for each in said if not each.holds]
            if differ:
                page.write_text(rewritten(text, said, somebody.ids))
        print(f"{name_of(page)}: {len(differ)} of {len(said)} outputs were written anew")
    return not wrong


def draw() -> None:
    try:
        from tests import recording
    except ImportError as missing:
        sys.exit(f"no picture of a session: {missing}; pip install --group test")
    lines = recording.record()
    if not recording.holds(lines):
        recording.PICTURE.write_text(recording.drawn(lines))
        print(f"{name_of(recording.PICTURE)}: drawn anew")


if __name__ == "__main__":
    named = [Path(name).resolve() for name in sys.argv[1:] if not name.startswith("--")]
    if "--write" not in sys.argv:
        sys.exit(__doc__)
    if not named:
        reference.write()
    done = write(named or FOLLOWED)
    if not named:
        draw()
    sys.exit(not done)
