"""Agents and frameworks that people already use: each translates its own events and answers.

One file per agent or framework. Must not know how content is stored or sandboxes work.
"""
