"""A tree brought from one state to another: staged beside it, verified, then switched."""
