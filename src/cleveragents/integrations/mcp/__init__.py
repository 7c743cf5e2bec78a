"""`agents mcp`: what an agent can ask for itself, and clients that have no hooks.

Only `server` imports the package `mcp`; `plans` knows nothing of the protocol.
"""
