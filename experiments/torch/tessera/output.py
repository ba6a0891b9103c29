"""Files that are left for a person: whole or not at all."""

import contextlib
import os


def write(path, content):
    """Replaces `path` by a file with these bytes. A device or a pipe is written to, not replaced; after a failure what was there
    is there, and nothing else."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as f:
            f.write(content)
        return
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb") as f:
            f.write(content)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        error.filename = path
        raise
