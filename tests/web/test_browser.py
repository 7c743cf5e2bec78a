"""The page in a real browser: `nox -s browser`. Skipped, and says so, where there is none."""

import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from cleveragents.model.plan import State
from cleveragents.workspace import open_workspace
from tests.harness import PATIENCE
from tests.in_process import Yard, files

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
if not os.environ.get("CLEVERAGENTS_TEST_BROWSER"):
    pytest.skip("in a real browser: nox -s browser", allow_module_level=True)
if not os.path.exists(CHROMIUM):
    pytest.skip(f"no browser at {CHROMIUM}: set CHROMIUM", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api")

PLAN = """\
name: shop
description: Notes for the shop
resources:
  app: {kind: fs-directory, path: app}
steps:
  - id: one
    decision: {question: which name, chosen: people, alternatives: [users]}
    on: app
    run: "echo one > one.txt"
  - id: slow
    decision: {question: how long, chosen: until told}
    on: app
    run: "echo line 1; while [ ! -e $AGENTS_PLAN_DIR/more ]; do sleep 0.02; done; echo line 2;
      while [ ! -e $AGENTS_PLAN_DIR/go ]; do sleep 0.02; done; echo two > two.txt"
  - id: last
    decision: {question: which end, chosen: three}
    on: app
    run: "echo \\"${AGENTS_GUIDANCE:-three}\\" > three.txt"
"""


@pytest.fixture(scope="module")
def browser() -> Generator[object]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def address(yard: Yard) -> Generator[str]:
    """What `agents web` prints."""
    server = subprocess.Popen(
        [sys.executable, "-m", "cleveragents", "web", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    yield server.stdout.readline().strip()
    server.terminate()
    server.communicate()


class Window:
    """A page with everything it complains about, which has to be nothing."""

    def __init__(self, browser: object, address: str, **options: object) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._heard)
        self.page.goto(address)
        self.base = address.split("/enter", maxsplit=1)[0]

    def _heard(self, message: object) -> None:
        # A refused command is answered with 409, which the browser notes as well.
        if message.type == "error" and "409" not in message.text:
            self.wrong.append(message.text)

    def words(self) -> str:
        return " ".join(self.page.inner_text("body").split())

    def wide(self) -> int:
        return self.page.evaluate("document.documentElement.scrollWidth - innerWidth")


def test_run_watch_roll_back_undo_correct_apply(yard: Yard, browser: object, address: str) -> None:
    with open_workspace() as ws:
        plan_id = ws.use(yard.plan(PLAN)).plan_id
    window = Window(browser, address)
    page = window.page

    page.click("a.button:has-text('Run')")
    page.click("button:has-text('Run')")
    page.wait_for_selector("#tail:has-text('line 1')")
    assert "line 2" not in page.inner_text("#tail")
    Path(yard.top / "more").touch()
    page.wait_for_selector("#tail:has-text('line 2')")
    Path(yard.top / "go").touch()
    page.wait_for_selector("a.button:has-text('Review and apply')")
    assert "All 3 steps are done" in window.words()
    assert "Live" not in page.inner_text("header.bar")

    page.click("h3 a:has-text('people')")
    page.wait_for_selector("#panel h2:has-text('people')")
    assert re.search(r"\?at=\w+$", page.url)
    assert "users" in page.inner_text("#panel")
    page.click("#panel >> text=Go back here")
    assert "2 decisions are set aside" in window.words()
    page.click("button:has-text('Roll back')")
    page.wait_for_selector("h3:has-text('You rolled back to “people”')")
    with open_workspace() as ws:
        assert files(ws.find(plan_id)) == {"old.txt", "one.txt"}

    page.click("a.button:has-text('Undo rollback')")
    page.click("button:has-text('Undo')")
    page.wait_for_selector("h3:has-text('and undid it')")
    with open_workspace() as ws:
        assert "three.txt" in files(ws.find(plan_id))

    page.click("h3 a:has-text('three')")
    page.wait_for_selector("#panel h2:has-text('three')")
    page.click("#panel >> text=Correct")
    page.fill("textarea", "four, please")
    page.click("button:has-text('Correct this decision')")
    page.wait_for_selector("p.q:has-text('You corrected: which end')")

    page.click("a.button:has-text('Review and apply')")
    page.click("button:has-text('Apply')")
    page.wait_for_selector("#sentence:has-text('Applied to app')")
    assert (yard.app / "three.txt").read_text() == "four, please\n"
    with open_workspace() as ws:
        assert ws.find(plan_id).plan.state is State.APPLIED
    assert window.wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1280, 1600])
def test_nothing_overflows_and_nothing_is_refused(
    yard: Yard, browser: object, address: str, width: int, scheme: str
) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
    size = {"width": width, "height": 900}
    window = Window(browser, address, viewport=size, color_scheme=scheme)
    for path in ("", "/diff", "/diff?lines=side", "/apply", "/undo", "/rollback?to=first"):
        window.page.goto(f"{window.base}/plans/{plan.plan_id}{path}")
        window.page.wait_for_load_state("networkidle")
        assert window.wide() <= 0, path
    assert window.wrong == []


WRITING = "steps: [{id: a, run: 'echo 1 > one', checkpoint: early}, {id: b, run: 'echo 2 > two'}]"
SEEN = """(name) => {
  const [selector, part] = name.split("::");
  const style = getComputedStyle(document.querySelector(selector), part ? "::" + part : null);
  return { ink: style.color, ground: style.backgroundColor, shown: style.display != "none",
           line: style.outlineStyle, border: style.borderTopStyle, text: style.content,
           painted: style.backgroundImage, decoration: style.textDecorationLine };
}"""


def test_readable_in_the_persons_own_colours(yard: Yard, browser: object, address: str) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws, WRITING)
    window = Window(browser, address, forced_colors="active")
    page = window.page
    page.goto(f"{window.base}/plans/{plan.plan_id}")
    for name in (".button.main", ".button:not(.main)", ".flag"):
        seen = page.evaluate(SEEN, name)
        assert seen["ink"] != seen["ground"], (name, seen)
    assert page.evaluate(SEEN, ".moment[aria-current]")["line"] == "solid"
    paper = page.evaluate(SEEN, "body")["ground"]
    assert page.evaluate(SEEN, ".node:not(.looked, .ghost)")["ground"] != paper
    page.goto(f"{window.base}/plans/{plan.plan_id}/rollback?to=early")
    button = page.evaluate(SEEN, ".button.main")
    assert button["ground"] != button["ink"]
    assert page.evaluate(SEEN, ".fates .to::before")["ground"] != paper
    page.goto(f"{window.base}/plans/{plan.plan_id}/diff?lines=side")
    assert "+" in page.evaluate(SEEN, ".side td.add:nth-child(odd)::after")["text"]
    assert window.wrong == []


def test_words_that_differ_are_readable_in_the_persons_own_colours(
    yard: Yard, browser: object, address: str
) -> None:
    (yard.app / "old.txt").write_text("one old file\n")
    with open_workspace() as ws:
        plan = yard.done(ws, "steps: [{id: a, run: 'echo one new file > old.txt'}]")
    window = Window(browser, address, forced_colors="active", color_scheme="dark")
    window.page.goto(f"{window.base}/plans/{plan.plan_id}/diff")
    seen = window.page.evaluate(SEEN, "tr.add mark")
    assert (seen["ground"], seen["decoration"]) == ("rgba(0, 0, 0, 0)", "underline")
    assert seen["ink"] == window.page.evaluate(SEEN, "body")["ink"]
    assert window.wrong == []


def test_lanes_and_tracks_are_seen_in_the_persons_own_colours(
    yard: Yard, browser: object, address: str
) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws, WRITING)
        decision = ws.ctx.store.plans.steps(plan.plan_id)[0].decision_id
        plan.correct(decision, guidance="another way")
    window = Window(browser, address, forced_colors="active")
    page = window.page
    page.goto(f"{window.base}/plans/{plan.plan_id}")
    for name in (".carry.starts", ".carry.op", ".line > ol"):
        assert "gradient" in page.evaluate(SEEN, name)["painted"], name
    for name in (".aside::after", ".joins::after"):
        assert page.evaluate(SEEN, name)["border"] != "none", name
    words = [page.evaluate(SEEN, name)["ink"] for name in (".carry .did", ".facts")]
    assert words[0] == words[1]
    assert window.wrong == []


def test_on_paper_it_is_light_and_open_and_has_no_controls(
    yard: Yard, browser: object, address: str
) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws, WRITING)
    window = Window(browser, address, color_scheme="dark")
    page = window.page
    page.goto(f"{window.base}/plans/{plan.plan_id}")
    page.emulate_media(media="print")
    assert page.evaluate(SEEN, "body")["ground"] == "rgb(255, 255, 255)"
    assert page.evaluate(SEEN, "body")["ink"] == "rgb(0, 0, 0)"
    assert (
        page.evaluate(SEEN, ".node:not(.looked, .ghost, .system)")["ground"] == "rgb(37, 88, 201)"
    )
    flag = page.evaluate(SEEN, ".cut .flag")
    assert (flag["ink"], flag["border"]) == ("rgb(0, 0, 0)", "solid")
    for name in (".bar", ".map", ".acts", ".head .does"):
        assert not page.evaluate(SEEN, name)["shown"], name
    page.goto(f"{window.base}/plans/{plan.plan_id}/rollback?to=first")
    path = page.locator("details.list .files li").first
    assert path.is_visible()
    assert page.pdf().startswith(b"%PDF")
    assert window.wrong == []


def test_keys_and_no_script(yard: Yard, browser: object, address: str) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
    window = Window(browser, address)
    window.page.goto(f"{window.base}/plans/{plan.plan_id}")
    window.page.wait_for_load_state("networkidle")
    window.page.keyboard.press("k")
    window.page.keyboard.press("Enter")
    window.page.wait_for_selector("#panel h2:has-text('a')")
    state = window.context.storage_state()
    plain = browser.new_context(java_script_enabled=False, storage_state=state).new_page()
    plain.goto(f"{window.base}/plans/{plan.plan_id}")
    plain.click("h3 a:has-text('Began')")
    assert "Began" in plain.inner_text("#panel h2")
    plain.click("a.button:has-text('Undo run')")
    plain.click("button:has-text('Undo')")
    assert "You undid the run" in plain.inner_text("body")
    assert window.wrong == []


def tab_to(page: object, selector: str) -> None:
    """With the keyboard alone."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("(name) => document.activeElement.matches(name)", selector):
            return
    raise AssertionError(f"no key leads to {selector}")


def test_stop_resume_undo_and_redo(yard: Yard, browser: object, address: str) -> None:
    with open_workspace() as ws:
        plan_id = ws.use(yard.plan(PLAN)).plan_id
    window = Window(browser, address)
    page = window.page
    page.click("a.button:has-text('Run')")
    page.click("button:has-text('Run')")
    page.wait_for_selector("#tail:has-text('line 1')")
    page.click("button:has-text('Stop')")
    page.wait_for_selector("a.button:has-text('Resume')")
    with open_workspace() as ws:
        assert ws.find(plan_id).plan.state is State.ERRORED
        assert "two.txt" not in files(ws.find(plan_id))
    for name in ("more", "go"):
        Path(yard.top / name).touch()
    page.click("a.button:has-text('Resume')")
    page.click("button:has-text('Resume')")
    page.wait_for_selector("a.button:has-text('Review and apply')")
    page.click("a.button:has-text('Undo resuming')")
    page.click("button:has-text('Undo')")
    page.click("a.button:has-text('Redo resuming')")
    page.click("button:has-text('Redo')")
    page.wait_for_selector("a.button:has-text('Review and apply')")
    with open_workspace() as ws:
        assert {"one.txt", "two.txt", "three.txt"} <= files(ws.find(plan_id))
    assert window.wrong == []


def test_a_rollback_with_the_keyboard_alone(yard: Yard, browser: object, address: str) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws, WRITING)
    window = Window(browser, address)
    page = window.page
    page.goto(f"{window.base}/plans/{plan.plan_id}")
    page.wait_for_load_state("networkidle")
    tab_to(page, "#moments .go")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('Go back to')")
    tab_to(page, "button.main")
    page.keyboard.press("Enter")
    page.wait_for_selector("h3:has-text('You rolled back to')")
    with open_workspace() as ws:
        assert "two" not in files(ws.find(plan.plan_id))
    assert window.wrong == []


def test_a_long_name_and_the_focus_on_a_narrow_screen(
    yard: Yard, browser: object, address: str
) -> None:
    with open_workspace() as ws:
        text = PLAN.replace("name: shop", f"name: {'a name that nobody shortened ' * 4}end")
        plan = ws.use(yard.plan(text))
    window = Window(browser, address, viewport={"width": 400, "height": 900})
    page = window.page
    cut = "e => e.scrollWidth - e.clientWidth"
    for where in ("", "/resume", "/diff"):
        page.goto(f"{window.base}/plans/{plan.plan_id}{where}")
        assert window.wide() <= 0, where
        assert not where or page.locator(".crumbs [aria-current]").evaluate(cut) == 0, where
    with open_workspace() as ws:
        done = yard.done(ws, WRITING)
    page.goto(f"{window.base}/plans/{done.plan_id}")
    page.click("h3 a:has-text('a')")
    page.wait_for_selector("#panel:focus")
    assert page.locator("#panel").is_visible()
    assert not page.locator("#moments").is_visible()
    with open_workspace() as ws:
        decision = ws.ctx.store.plans.steps(done.plan_id)[-1].decision_id
    page.goto(f"{window.base}/plans/{done.plan_id}/correct?decision={decision}")
    assert page.evaluate("document.activeElement.name") == "guidance"
    assert window.wrong == []


def test_a_file_with_a_long_name_stays_on_the_line_of_its_fold(
    yard: Yard, browser: object, address: str
) -> None:
    name = "n" * 150
    with open_workspace() as ws:
        plan = yard.done(ws, WRITING.replace("> one", f"> {name}"))
    window = Window(browser, address, viewport={"width": 400, "height": 900})
    window.page.goto(f"{window.base}/plans/{plan.plan_id}/diff")
    heading = window.page.locator(".file > summary", has_text=name)
    tops = "e => [e, e.querySelector('h3')].map(e => e.getBoundingClientRect().top)"
    whole, title = heading.evaluate(tops)
    assert title - whole < 16
    assert window.wide() <= 0


def test_every_verb_without_script(yard: Yard, browser: object, address: str) -> None:
    for name in ("more", "go"):
        Path(yard.top / name).touch()
    with open_workspace() as ws:
        plan_id = ws.use(yard.plan(PLAN)).plan_id
    window = Window(browser, address)
    state = window.context.storage_state()
    plain = browser.new_context(java_script_enabled=False, storage_state=state).new_page()
    plain.set_default_timeout(PATIENCE * 1000)
    here = f"{window.base}/plans/{plan_id}"

    def press(link: str, button: str) -> None:
        plain.goto(here)
        plain.click(f".head a.button:has-text('{link}')")
        plain.click(f"button:has-text('{button}')")

    press("Run", "Run")
    # The page of a plan that runs loads itself again.
    plain.wait_for_selector("a.button:has-text('Review and apply')")
    plain.click("h3 a:has-text('people')")
    plain.click("#panel >> text=Go back here")
    plain.click("button:has-text('Roll back')")
    assert "You rolled back to “people”" in plain.inner_text("body")
    press("Undo rollback", "Undo")
    press("Redo rollback", "Redo")
    press("Undo rollback", "Undo")
    plain.click("h3 a:has-text('three')")
    plain.click("#panel >> text=Correct")
    plain.fill("textarea", "four")
    plain.click("button:has-text('Correct this decision')")
    plain.wait_for_selector("a.button:has-text('Review and apply')")
    press("Review and apply", "Apply")
    assert "Applied to app" in plain.inner_text("#sentence")
    assert (yard.app / "three.txt").read_text() == "four\n"


def test_another_site_cannot_send_the_forms(yard: Yard, browser: object, address: str) -> None:
    with open_workspace() as ws:
        plan = yard.done(ws)
    window = Window(browser, address)
    evil = yard.top / "evil.html"
    target = f"{window.base}/plans/{plan.plan_id}/cancel"
    evil.write_text(f'<form method="post" action="{target}"><button>win</button></form>')
    window.page.goto(f"file://{evil}")
    window.page.click("button")
    window.page.wait_for_load_state()
    assert "agents web" in window.words() or "only the page itself" in window.words()
    with open_workspace() as ws:
        assert ws.find(plan.plan_id).plan.state is State.COMPLETE
