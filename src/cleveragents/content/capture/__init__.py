"""Captures a tree at the cost of what changed: by events, stat data, and reading changed files."""
