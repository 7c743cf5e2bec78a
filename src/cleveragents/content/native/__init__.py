"""C code, and Python twins that give the same answers where it is not compiled."""
