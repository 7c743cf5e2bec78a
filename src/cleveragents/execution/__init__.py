"""A plan is taken in, checked, run and resumed here.

Knows nothing of rollback on request or of apply.
"""
