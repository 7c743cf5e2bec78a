"""Coding agents: recorded payloads, and the real programs against a scripted model."""
