"""Pictures that differ are shown beside each other, and nothing that only says it is one."""

import struct
import zlib

import pytest

from cleveragents.web.report import html_report
from cleveragents.web.view.pictures import LARGEST, Album, recognised
from cleveragents.workspace import open_workspace
from tests.in_process import Yard, execute
from tests.web.visitor import Visitor, words

PLAN = """
name: drawn
resources: {app: {kind: fs-directory, path: app}}
steps:
  - {id: draw, on: app, run: "cp $AGENTS_PLAN_DIR/made/* ."}
"""
PAGE = b"<script>alert(1)</script>"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>\0'


def png(width: int, height: int, shade: int = 0) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + bytes([shade]) * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def claimed(width: int, height: int) -> bytes:
    """A PNG that says it is that large, and has no pixel."""
    whole = png(1, 1)
    return whole[:16] + struct.pack(">II", width, height) + whole[24:]


JPEG = (
    b"\xff\xd8\xff\xe0" + struct.pack(">H", 6) + b"JFIF"
    b"\xff\xc4" + struct.pack(">H", 3) + b"x"
    b"\xff\xc2" + struct.pack(">HBHHB", 8, 8, 20, 30, 1)
)


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (png(3, 5), ("image/png", 3, 5)),
        (b"GIF89a" + struct.pack("<HH", 7, 9), ("image/gif", 7, 9)),
        (JPEG, ("image/jpeg", 30, 20)),
        (b"RIFF....WEBPVP8X........\x63\0\0\x31\0\0", ("image/webp", 100, 50)),
        (b"RIFF....WEBPVP8L....\x2f" + struct.pack("<I", 99 | 49 << 14), ("image/webp", 100, 50)),
        (
            b"RIFF....WEBPVP8 .......\x9d\x01\x2a" + struct.pack("<HH", 100, 50),
            ("image/webp", 100, 50),
        ),
        (b"RIFF....WEBPXXXX", None),
        (JPEG[:12], None),
        (b"GIF89a\1", None),
        (SVG, None),
        (PAGE, None),
        (b"", None),
    ],
)
def test_a_picture_is_what_its_bytes_say(data: bytes, seen: tuple[str, int, int] | None) -> None:
    assert recognised(data) == seen


def test_what_is_too_large_is_not_kept_and_old_ones_make_room() -> None:
    album = Album(room=300)
    assert album.add(claimed(100_000, 100_000)) is None
    assert album.add(png(1, 1) + bytes(LARGEST)) is None
    kept = [album.add(png(1, 1, shade) + bytes(100)) for shade in range(3)]
    found = [album.get(picture.name) is not None for picture in kept if picture]
    assert found == [False, False, True]


def drawn(yard: Yard, before: dict[str, bytes], after: dict[str, bytes]) -> Visitor:
    (yard.top / "made").mkdir()
    for folder, files in ((yard.app, before), (yard.top / "made", after)):
        for name, data in files.items():
            (folder / name).write_bytes(data)
    with open_workspace() as ws:
        execute(ws, ws.use(yard.plan(PLAN)))
    return Visitor()


def test_both_pictures_are_beside_each_other(yard: Yard) -> None:
    old, new, added = png(8, 8), png(4, 6, 9), png(2, 2, 1)
    visitor = drawn(yard, {"a.png": old}, {"a.png": new, "b.PNG": added})
    page = visitor.get("/plans/drawn/diff")
    said = words(page)
    assert f"a.png agent: draw changed Before 8 by 8, {len(old)} bytes After 4 by 6" in said
    assert f"b.PNG agent: draw added After 2 by 2, {len(added)} bytes" in said
    names = [part.split('"')[0] for part in page.split('src="/pictures/')[1:]]
    answers = [visitor.client.get(f"/pictures/{name}") for name in names]
    assert [answer.content for answer in answers] == [old, new, added]
    for answer in answers:
        assert answer.headers["content-type"] == "image/png"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert visitor.client.get(f"/pictures/{'0' * 64}").status_code == 404
    with open_workspace() as ws:
        report = html_report(ws, ws.find("drawn"))
    assert "Before 8 by 8" in words(report)
    assert "<img" not in report
    stranger = Visitor(enter=False)
    assert stranger.client.get(f"/pictures/{names[0]}").status_code == 403


def test_what_only_says_it_is_a_picture_is_not_shown(yard: Yard) -> None:
    big = png(3, 3) + bytes(LARGEST)
    made = {"page.png": PAGE + b"\0", "drawing.svg": SVG, "big.png": big, "was.png": PAGE + b"\0"}
    visitor = drawn(yard, {"was.png": png(5, 5)}, made)
    page = visitor.get("/plans/drawn/diff")
    said = words(page)
    assert page.count('<img class="picture"') == 1
    assert "5 by 5" in said
    assert "The later one is not shown: no picture of a kind known here, or too large." in said
    for name in ("page.png", "drawing.svg", "big.png"):
        assert f"{name} agent: draw added Not text: added." in said
    assert "<script>alert" not in page


def test_a_link_is_not_followed(yard: Yard) -> None:
    (yard.top / "secret.png").write_bytes(png(6, 6))
    text = PLAN.replace("cp $AGENTS_PLAN_DIR/made/* .", "ln -s ../secret.png link.png")
    with open_workspace() as ws:
        execute(ws, ws.use(yard.plan(text)))
    page = Visitor().get("/plans/drawn/diff")
    assert "link.png" in words(page)
    assert 'src="/pictures/' not in page


def test_the_moments_compared_are_those_chosen(yard: Yard) -> None:
    visitor = drawn(yard, {}, {"a.png": png(1, 1)})
    with open_workspace() as ws:
        plan = ws.find("drawn")
        ids = [group.group_id for group in ws.ctx.store.checkpoints.groups(plan.plan_id)]
    page = visitor.get(f"/plans/drawn/diff?from=first&to={ids[1]}")
    assert f'<option value="{ids[0]}" selected>' in page
    assert f'<option value="{ids[1]}" selected>' in page
