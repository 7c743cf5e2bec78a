"""Progress while a command works, and its answer in a terminal."""
