"""The C program that does all predicting: named by $TESSERA, in the package itself (a wheel carries it), in PATH, or in the
build folder of the checkout that this package lies in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .errors import Refused


CARRIED = Path(__file__).resolve().parent / "native" / "bin" / "tessera"


def find():
    named = os.environ.get("TESSERA")
    if named:
        if not os.access(named, os.X_OK):
            raise Refused(f"TESSERA={named}: no such program")
        return named
    if os.access(CARRIED, os.X_OK):
        return str(CARRIED)
    found = shutil.which("tessera")
    built = Path(__file__).resolve().parents[3] / "build" / "tessera"
    if found:
        return found
    if os.access(built, os.X_OK):
        return str(built)
    raise Refused("the program tessera is not in PATH and not built; name it with TESSERA=PATH")


def main():
    """The command `tessera` of a wheel: this process becomes the program."""
    try:
        os.execv(CARRIED, ["tessera", *sys.argv[1:]])
    except OSError as error:
        print(f"tessera: {CARRIED}: {error.strerror}; install the package again", file=sys.stderr)
        return 2


def run(arguments):
    """The program's standard output. Its notes go to ours; its mistakes become a refusal."""
    done = subprocess.run([find(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Refused(lines[-1].removeprefix("tessera: ") if lines
                      else f"tessera {arguments[0]} ended with status {done.returncode}")
    sys.stderr.write(done.stderr)
    return done.stdout
