"""Only plain files are read: a pipe would be waited for without end."""

import errno
import os
from pathlib import Path


def check_plain(path: Path) -> None:
    """Raise the OSError that says why a path that exists is no plain file; a missing one is told by whoever opens it.

    Raises:
        IsADirectoryError: a folder.
        OSError: a pipe, a socket or a device.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, and no plain file", path)
