from textkit import shout


def greet(name):
    return shout(f"hello {name}")
