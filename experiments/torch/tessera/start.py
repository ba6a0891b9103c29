"""The tracing child: one process that has torch and the stand-in device loaded, started when first
needed, and asked for any number of traces. Requests are lines of JSON, answers exit statuses; traces
and what was said come as files."""

import atexit
import json
import os
import subprocess
import sys
import tempfile

from . import standin
from .errors import Refused

_child = None


def child(request):
    """The bytes of the trace that `request` asks for."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = os.path.join(folder, "model.trace"), os.path.join(folder, "log")
        status = _ask({**request, "folder": os.getcwd(), "out": out, "log": log})
        with open(log, encoding="utf-8", errors="replace") as f:
            said = f.read()
        if os.environ.get("TESSERA_TRACEBACK"):
            sys.stderr.write(said)
        if status or not os.path.exists(out):
            raise Refused(last_line(said) or f"the traced run ended with status {status}")
        for line in said.splitlines():
            if line.startswith("note: "):
                print(f"tessera: {last_line(line)}", file=sys.stderr)
        with open(out, "rb") as f:
            return f.read()


def _ask(request):
    global _child
    if _child is None or _child.poll() is not None:
        cuda, notes = standin.check()
        for note in notes:
            print(f"tessera: note: {note}", file=sys.stderr)
        _child = subprocess.Popen([sys.executable, "-m", "tessera.child"], text=True, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, env=standin.environment(cuda))
        atexit.register(_end, _child)
    open(request["log"], "w", encoding="utf-8").close()
    try:
        _child.stdin.write(json.dumps(request) + "\n")
        _child.stdin.flush()
        answer = _child.stdout.readline()
    except OSError:
        answer = ""
    if not answer:
        raise Refused(f"the tracing process died with status {_child.wait()}")
    return int(answer)


def _end(process):
    process.stdin.close()
    process.stdout.close()
    process.wait()


def last_line(text):
    """What the child said, one line, nothing that moves a terminal's cursor."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "".join(c if c.isprintable() else "?" for c in lines[-1]) if lines else ""
