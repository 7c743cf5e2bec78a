"""Writes first plan files for people, and checks plan files without running them."""
