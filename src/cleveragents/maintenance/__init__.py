"""Care of the store: recovery, collection, checks, deletion; works on any plan and runs no step."""
