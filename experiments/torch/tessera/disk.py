"""What stays on disk: files that are left for a person, whole or not at all; and the cache of plans, ~/.cache/tessera: a folder
per trace, with the trace and the experiments that were asked of it, because the commands of rows name them. A folder that was not
asked for 30 days goes, and the longest unused ones while all take more than a gigabyte."""

import contextlib
import os
import re
import shutil
import time

DAYS, BYTES = 30, 1 << 30

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


def folder(trace):
    """The folder of a trace, by its hash; others that are too many or too old are removed."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    root = os.path.join(cache, "tessera")
    path = os.path.join(root, trace[:16])
    os.makedirs(path, mode=0o700, exist_ok=True)
    os.utime(path)
    clean(root, path)
    return path


def clean(root, kept):
    """Removes what is old, and of the rest the oldest beyond the limit. The program keeps other files there."""
    oldest = time.time() - DAYS * 86400
    for file in os.scandir(kept):   # experiments of long ago
        if file.stat(follow_symlinks=False).st_mtime < oldest and file.is_file(follow_symlinks=False):
            os.unlink(file.path)
    others = [entry for entry in os.scandir(root) if re.fullmatch("[0-9a-f]{16}", entry.name)
              and entry.is_dir(follow_symlinks=False) and entry.path != kept]
    taken = size(kept)
    for entry in sorted(others, key=lambda entry: entry.stat().st_mtime, reverse=True):
        taken += size(entry.path)
        if entry.stat().st_mtime < oldest or taken > BYTES:
            shutil.rmtree(entry.path, ignore_errors=True)


def size(path):
    return sum(file.stat(follow_symlinks=False).st_size for file in os.scandir(path))
