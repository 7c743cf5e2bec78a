"""A plan is taken in, checked, run and resumed here.

Knows nothing of going back on request or of making work real.
"""
