"""What agents run: `client` from its kept bytecode, because a script is compiled every time."""

import sys

if __name__ == "__main__":
    sys.path.append(__file__.rpartition("/")[0])  # last: nothing of Python's own is hidden by it
    import client  # pyright: ignore[reportMissingImports]

    client.run()  # pyright: ignore[reportUnknownMemberType]
