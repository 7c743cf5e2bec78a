"""Rename a function wherever Python names it: definitions, imports, calls, attributes."""

import re
import sys
import tokenize
from pathlib import Path

old, new = sys.argv[1:]
for path in sorted(Path().rglob("*.py")):
    with tokenize.open(path) as file:
        lines = file.readlines()
    with tokenize.open(path) as file:
        found = [
            token
            for token in tokenize.generate_tokens(file.readline)
            if token.type == tokenize.NAME and token.string == old
        ]
    for token in reversed(found):
        row, column = token.start
        line = lines[row - 1]
        lines[row - 1] = line[:column] + re.sub(old, new, line[column:], count=1)
    if found:
        path.write_text("".join(lines))
        print(f"{path}: {len(found)}")
