"""The command line: parse, call, render.

Decides nothing and reaches the store only through the rooms below.
"""
