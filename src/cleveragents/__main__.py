"""`python -m cleveragents`: the same as the installed command."""

from cleveragents.cli.entry import program

program()
