"""Copies a tree unchanged, in threads, hashing on the way."""
