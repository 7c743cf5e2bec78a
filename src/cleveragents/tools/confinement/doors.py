"""Sockets of services that run things on the machine for any client; bwrap hides them.

A read-only mount does not stop a connection, and a client of a container engine, a service manager,
a terminal multiplexer or a display can run anything outside. Paths in `sandbox.writable` stay open.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress

from cleveragents.tools.confinement.mounts import is_inside

PLACES = (
    # containers and virtual machines
    "/run/docker.sock", "/run/docker", "/run/containerd", "/run/podman", "/run/crio",
    "/run/buildkit", "/run/libvirt", "/run/incus", "/var/lib/incus/unix.socket",
    "/var/lib/lxd/unix.socket", "/var/snap/lxd/common/lxd/unix.socket",
    "~/.docker/run", "~/.docker/desktop", "~/.colima", "~/.lima", "~/.rd",
    # services and packages, the system's and each user's own
    "/run/dbus", "/run/systemd/private", "/run/initctl", "/run/user",
    "/run/snapd.socket", "/run/snapd-snap.socket",
    # input, signing and display for the user
    "/run/screen", "/run/tmux", "~/.screen", "~/.gnupg/S.gpg-agent", "~/.gnupg/S.gpg-agent.ssh",
    "~/.ssh/agent", "~/.1password/agent.sock",
)  # fmt: skip
IN_TMP = re.compile(
    r"tmux-\d+|u?screens|screen-.*|\.(X11|ICE)-unix|ssh-\w+|emacs\d+|vscode-.*\.sock|dbus-\w+"
)
OF_ROOT = ("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/firmware/efi/efivars")
"""To look at these is more than to read, and root may look."""


def doors(
    environ: Mapping[str, str], writable: Iterable[str], is_root: bool
) -> tuple[list[str], list[str]]:
    """Existing folders and sockets to cover."""
    opened = [os.path.realpath(path) for path in writable]
    folders: list[str] = []
    sockets: list[str] = []
    for path in dict.fromkeys(map(os.path.realpath, _places(environ, is_root))):
        try:
            mode = os.stat(path).st_mode
        except OSError:
            continue
        if any(is_inside(path, top) for top in opened):
            continue
        if stat.S_ISDIR(mode):
            folders.append(path)
        elif stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
            sockets.append(path)
    return folders, sockets


def _places(environ: Mapping[str, str], is_root: bool) -> list[str]:
    home = environ.get("HOME", "")
    found = [f"{home}{each[1:]}" if each[0] == "~" else each for each in PLACES]
    found += [environ.get("SSH_AUTH_SOCK", ""), *(OF_ROOT if is_root else ())]
    with suppress(OSError):
        found += [f"/tmp/{name}" for name in os.listdir("/tmp") if IN_TMP.fullmatch(name)]
    return [path for path in found if os.path.isabs(path)]
