"""Run an agent's plan in sandboxes; checkpoint, roll back, resume and apply it as a whole."""

__version__ = "0.1.0"
