"""msgspec types are worked out in one place, under one lock: two threads at once would crash."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "cleveragents"
BUILDS = {"convert", "decode", "Decoder"}
AT_IMPORT = {"codec.py", "content/native/manifests.py", "actors/lines.py"}
"""Modules with a decoder of their own, made while they are imported."""
LOADS_AT_ONCE = """
import sys, threading
sys.setswitchinterval(1e-6)
from cleveragents.content.capture.statcache import Known, StatCache
from cleveragents.content.trees import EMPTY

path, root = sys.argv[1:]
StatCache(path, root).keep(Known(EMPTY, {b"a": b"b"}, 1))
found, ready = [], threading.Barrier(8)

def load():
    cache = StatCache(path, root)
    ready.wait()
    found.append(cache.load())

threads = [threading.Thread(target=load) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 8 and None not in found, found
"""


def test_threads_that_use_a_type_for_the_first_time_at_once_all_get_it(tmp_path: Path) -> None:
    """Of 60 such processes 18 died of a segmentation fault before there was a lock."""
    for attempt in range(12):
        argv = [sys.executable, "-c", LOADS_AT_ONCE, str(tmp_path / f"cache{attempt}"), "/"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"attempt {attempt}: {done.returncode} {done.stderr}"


def test_only_one_module_works_types_out() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)[:60]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if str(path.relative_to(PACKAGE)) not in AT_IMPORT
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _builds(node)
    ]
    assert not found, "use cleveragents.codec instead:\n" + "\n".join(found)


def _builds(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if not name.startswith("msgspec.") or name.rpartition(".")[2] not in BUILDS:
        return False
    # Without a type there is nothing to work out.
    return not name.endswith(".decode") or any(word.arg == "type" for word in call.keywords)
