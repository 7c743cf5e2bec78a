"""`python -m cleveragents`: the same as the installed command."""

from cleveragents.cli.main import entry

entry()
