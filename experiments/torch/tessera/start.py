"""Starts the tracing child and speaks with it: a request in JSON on its stdin, the trace as a file."""

import json
import os
import subprocess
import sys
import tempfile

from . import standin
from .errors import Refused

_noted = set()


def child(request):
    """Runs `request` in a process that has the stand-in device; returns the bytes of the trace."""
    cuda, notes = standin.check()
    for note in notes:
        if note not in _noted:
            _noted.add(note)
            print(f"tessera: note: {note}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "model.trace")
        done = subprocess.run([sys.executable, "-m", "tessera.child", out], input=json.dumps(request),
                              text=True, env=standin.environment(cuda), stderr=subprocess.PIPE)
        if done.returncode or not os.path.exists(out):
            raise Refused(last_line(done.stderr) or f"the traced run ended with status {done.returncode}")
        for line in done.stderr.splitlines():
            if line.startswith("note: "):
                print(f"tessera: {last_line(line)}", file=sys.stderr)
        with open(out, "rb") as f:
            return f.read()


def last_line(text):
    """What the child said, one line, nothing that moves a terminal's cursor."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "".join(c if c.isprintable() else "?" for c in lines[-1]) if lines else ""
