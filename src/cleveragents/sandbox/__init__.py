"""Private copies of resources: one file per strategy, a registry, the `Sandbox` protocol."""
