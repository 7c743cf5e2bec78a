"""Reads, checks, runs and resumes plans.

Must not know about rollback on request or apply.
"""
