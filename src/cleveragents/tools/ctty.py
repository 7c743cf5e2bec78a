"""Runs inside a namespace: takes the terminal, then execs the command.

Failures are reported in bwrap's format, so that they are parsed as bwrap's.
"""

import fcntl
import os
import sys
import termios


def main(argv: list[str]) -> None:
    os.setsid()
    terminal = next((fd for fd in (0, 1, 2) if os.isatty(fd)), None)
    if terminal is not None:
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    try:
        os.execvp(argv[0], argv)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        sys.stderr.write(f"bwrap: execvp {argv[0]}: {reason}\n")
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
