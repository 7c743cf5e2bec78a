from shop import store

SOURCES = ("get_users", "get_users_by_age")


def report():
    """Everybody, found by name: no codemod over names can see this one."""
    return ", ".join(getattr(store, SOURCES[0])())
