"""Run as `python become.py USER COMMAND ...`: end with the parent, be another user, and become the command.

It imports nothing but the standard library: it is what root runs of ours.
"""

import ctypes
import os
import pwd
import signal
import sys

NOT_FOUND = 126
"""What it ends with where the command cannot be run."""
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


def become(user: str, command: "list[str]") -> None:
    """Does not return. `user` is empty where it stays the same."""
    parent = os.getppid()
    if user:
        entry = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # a killed parent leaves nobody behind; setuid would clear it
        if user:
            libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # and no sudo is a way back
        if os.getppid() != parent:
            os._exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(NOT_FOUND)


if __name__ == "__main__":
    become(sys.argv[1], sys.argv[2:])
