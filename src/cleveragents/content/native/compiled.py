"""The compiled modules, if they were built from the current sources.

An old build stays beside newer sources until the next installation.
"""

FORM = 2
"""What the functions of both take and give; raised in the C sources as well when that changes."""

try:
    from cleveragents.content.native import _walk as walk
except ImportError:
    walk = None

try:
    from cleveragents.content.native import _copy as copy
except ImportError:
    copy = None

if walk is not None and getattr(walk, "FORM", 0) != FORM:
    walk = None
if copy is not None and getattr(copy, "FORM", 0) != FORM:
    copy = None
