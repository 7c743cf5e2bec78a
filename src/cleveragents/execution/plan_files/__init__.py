"""Plan files before there is a plan: written for a person, and checked without being run."""
