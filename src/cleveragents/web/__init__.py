"""The page: plans in a browser on this machine; it shows, and runs the commands it shows."""
