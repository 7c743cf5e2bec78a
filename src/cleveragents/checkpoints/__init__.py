"""Checkpoint groups: captured, committed, restored and pruned over all of a plan's sandboxes.

Knows no tools that run and no commands.
"""
