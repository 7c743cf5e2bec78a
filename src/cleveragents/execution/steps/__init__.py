"""Runs single steps; the plan's executor builds on it."""
