"""The child process of a `python` tool: calls it with inputs as JSON on stdin.

Started as a file, not as a module, so that nothing of ours is imported and a package of the same
name in the sandbox cannot interfere. An exception ends it like any program: traceback, exit code 1.
"""

import json
import os
import sys
from importlib import import_module
from operator import attrgetter


def main(target: str) -> None:
    sys.path[:0] = [path for path in (os.environ.get("AGENTS_PLAN_DIR"), os.getcwd()) if path]
    inputs = json.load(sys.stdin)
    module, _, names = target.partition(":")
    try:
        result = attrgetter(names)(import_module(module))(**inputs)
    finally:
        # Flush output before the traceback.
        sys.stdout.flush()
    if result is not None:
        sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
