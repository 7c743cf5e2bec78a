"""`python -m cleveragents`: the same as the installed command."""

from cleveragents.cli.quick import program

program()
