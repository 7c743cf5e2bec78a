"""A tree copied as it is, by threads, and hashed on the way."""
