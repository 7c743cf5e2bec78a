"""What people see while a command works, and how its answer looks in a terminal."""
