"""The words of the specification as frozen values, and the pure rules over them.

Knows no clock, file, database or process.
"""
