"""Pictures of the page: `python -m tests.photograph` writes docs/images/page*.png.

It needs Debian's chromium and `pip install playwright`. Look at them before you commit them.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from tests.harness import command, private_environment
from tests.scratch import query

PICTURES = Path(__file__).parents[1] / "docs" / "images"
NAME = "rename users to people"
PLAN = f"""\
name: {NAME}
resources:
  app: {{kind: git-checkout, path: shop}}
  db:  {{kind: sqlite, path: shop/data/shop.db}}
steps:
  - id: schema
    decision: {{question: Where to begin?, chosen: with the table, alternatives: [with the code]}}
    tool: sql
    on: db
    with: {{script: "ALTER TABLE users RENAME TO people"}}
  - id: code
    decision: {{question: How to rename in the code?, chosen: sed, alternatives: [a codemod]}}
    on: app
    run: sed -i 's/"users"/"people"/' api.py
  - id: notes
    decision: {{question: What about the notes?, chosen: rename them too}}
    on: app
    run: "mv notes/users.md notes/people.md && sed -i s/users/people/ notes/people.md"
  - id: test
    decision: {{question: Does it work?, chosen: run the tests}}
    on: app
    run: "python3 -B test_api.py"
"""
RUNS = """\
name: link-check
description: Every link in the docs leads somewhere
resources: {app: {kind: git-checkout, path: shop}}
steps:
  - {id: collect, decision: {question: Which links?, chosen: All of notes}, run: "seq 125 > links"}
  - {id: dedupe, run: "sort links | uniq | wc -l"}
  - id: probe
    decision: {question: How to check a link?, chosen: "HEAD, then GET", alternatives: [GET only]}
    run: "for n in $(seq 40); do echo ok   https://example.org/$n; done;
      while [ ! -e $AGENTS_PLAN_DIR/go ]; do sleep 0.1; done"
  - {id: rewrite, run: "true"}
  - {id: redirects, run: "true"}
"""
FILES = {
    "api.py": 'TABLE = "users"\n\n\ndef query():\n    return "SELECT name FROM users"\n',
    "test_api.py": "import sqlite3\n\nimport api\n\n"
    'rows = sqlite3.connect("data/shop.db").execute(api.query()).fetchall()\n'
    'assert len(rows) == 2, rows\nprint("ok:", api.TABLE)\n',
    "notes/users.md": "The users of the shop.\n",
    ".gitignore": "data/\n",
}


def run_plan(folder: Path, env: dict[str, str]) -> None:
    """A plan that failed, was edited in its sandbox, and resumed."""
    shop = folder / "shop"
    for name, text in FILES.items():
        (shop / name).parent.mkdir(parents=True, exist_ok=True)
        (shop / name).write_text(text)
    (shop / "data").mkdir()
    query(shop / "data" / "shop.db", "CREATE TABLE users (name TEXT)")
    query(shop / "data" / "shop.db", "INSERT INTO users VALUES ('Ada'), ('Grace')")
    for argv in (["init", "-qb", "main"], ["add", "-A"], ["commit", "-q", "-m", "The shop"]):
        subprocess.run(["git", *argv], cwd=shop, env=env, check=True)
    (folder / "plan.yaml").write_text(PLAN)
    argv = [command(), "plan", "run", "plan.yaml", "--quiet"]
    subprocess.run(argv, cwd=folder, env=env, check=False, stderr=subprocess.DEVNULL)
    (sandbox,) = Path(env["CLEVERAGENTS_HOME"]).glob("sandboxes/*/shop/api.py")
    sandbox.write_text(sandbox.read_text().replace("FROM users", "FROM people"))
    subprocess.run([command(), "plan", "resume", NAME, "-q"], cwd=folder, env=env, check=True)


def photograph(address: str, watched: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = player.chromium.launch(executable_path="/usr/bin/chromium", args=root)
        page = browser.new_page(viewport={"width": 1280, "height": 960})
        page.goto(address)
        page.get_by_text(NAME).first.click()
        page.wait_for_load_state("networkidle")
        plan = page.url
        page.screenshot(path=PICTURES / "page.png")
        page.goto(f"{plan}/diff")
        page.screenshot(path=PICTURES / "page-compare.png")
        page.goto(f"{plan}/rollback?to=schema")
        page.screenshot(path=PICTURES / "page-rollback.png", full_page=True)
        page.set_viewport_size({"width": 400, "height": 900})
        page.goto(plan)
        page.wait_for_load_state("networkidle")
        page.screenshot(path=PICTURES / "page-400.png")
        page.set_viewport_size({"width": 1280, "height": 900})
        page.emulate_media(color_scheme="dark")
        page.goto(address.split("/enter", maxsplit=1)[0])
        page.get_by_text("link-check").first.click()
        page.wait_for_selector("#tail:has-text('example.org/40')")
        page.screenshot(path=PICTURES / "page-live.png")
        watched.touch()
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        env = private_environment(Path(made))
        work = Path(made) / "work"
        work.mkdir()
        run_plan(work, env)
        (work / "runs.yaml").write_text(RUNS)
        quiet = [command(), "plan", "run", "runs.yaml", "--quiet"]
        web = [command(), "web", "--no-browser"]
        with (
            subprocess.Popen(quiet, cwd=work, env=env, stdout=subprocess.DEVNULL),
            subprocess.Popen(web, env=env, stdout=subprocess.PIPE, text=True) as server,
        ):
            assert server.stdout
            try:
                photograph(server.stdout.readline().split()[-1], work / "go")
            finally:
                (work / "go").touch()
                server.terminate()


if __name__ == "__main__":
    main()
