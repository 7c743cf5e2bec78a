"""How one step runs to its end; the executor of a whole plan builds on it."""
