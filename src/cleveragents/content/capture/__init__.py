"""A tree as it is now, at the cost of what changed: events, stat data, and what has to be read."""
