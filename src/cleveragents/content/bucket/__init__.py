"""Content beyond this machine: segments in a bucket, read through a cache and checked."""
