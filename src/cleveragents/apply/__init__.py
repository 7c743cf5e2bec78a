"""Sandboxes' work becomes real, all of it or none, and an applied plan is reverted.

The only room that changes the user's own resources.
"""
