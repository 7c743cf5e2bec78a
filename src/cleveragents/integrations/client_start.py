"""Runs `client` from its bytecode, because a script is compiled every time."""

import sys

if __name__ == "__main__":
    sys.path.append(__file__.rpartition("/")[0])  # last, so that it hides no standard module
    import client  # pyright: ignore[reportMissingImports]

    client.run()  # pyright: ignore[reportUnknownMemberType]
