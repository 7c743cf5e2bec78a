"""Every link between the documents leads somewhere, and no old word is left."""

import re
import sys
from pathlib import Path

for path in sorted(Path(sys.argv[1]).glob("*.md")):
    text = path.read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (path.parent / target).exists(), f"{path}: {target}"
    assert not re.search(r"\bjobs?\b", text, re.I), f"{path}: says job"
print("ok")
