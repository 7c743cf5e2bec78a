"""Rewrite one document: here by rule; in earnest a language model would be asked."""

import re
import sys
from pathlib import Path

path = Path(sys.argv[1])
text = re.sub(r"\bjob(s?)\b", r"plan\1", path.read_text())
text = re.sub(r"\bJob(s?)\b", r"Plan\1", text)
path.write_text(text.rstrip("\n") + "\n\nSee [terms](terms.md).\n")
