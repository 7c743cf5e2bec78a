"""Brings a tree from one state to another: staged beside it, verified, then switched."""
