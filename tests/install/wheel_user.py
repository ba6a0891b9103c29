"""What a person does with an installed wheel in a folder of theirs, without torch: `wheel_user.py VERSION`."""

import importlib.util
import os
import subprocess
import sys

import tessera
from tessera import program

BIN = os.path.dirname(sys.executable)
COMMAND = os.path.join(BIN, "tessera")
version, = sys.argv[1:]


def ran(*words, **changed):
    """Exit status, output and errors."""
    environment = {k: v for k, v in {**os.environ, **changed}.items() if v is not None}
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stdout, done.stderr


def expect(condition, *said):
    if not condition:
        sys.exit(f"wheel_user.py: {said}")


expect(importlib.util.find_spec("torch") is None, "there is a torch")

# The command is the program that the package carries, with the data beside it.
carried = os.path.join(os.path.dirname(tessera.__file__), "native")
expect(ran(COMMAND, "--version")[1] == version + "\n", ran(COMMAND, "--version"))
model = os.path.join(carried, "share", "tessera", "models", "llama-3.2-1b.json")
with open(model, encoding="utf-8") as f:
    text = f.read()
with open(model, "w", encoding="utf-8") as f:
    f.write(text.replace('"num_hidden_layers": 16', '"num_hidden_layers": 3'))
said = ran(COMMAND, "inspect", "mine.yaml")
expect(said[0] == 0 and "layers 3," in said[1], said)
said = ran(COMMAND, "compare", "mine.yaml", "--no-traces", "--out", "out")
expect(said[0] == 0 and "default" in said[1] and os.path.isfile("out/report.html"), said)
said = ran(COMMAND, "compare", "nothing.yaml")
expect(said[0] == 2 and said[2].count("\n") == 1, said)

# $TESSERA comes first, then the program of the package, then that of PATH.
os.makedirs("other", exist_ok=True)
for name in ("named", "tessera"):
    with open(f"other/{name}", "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\nexit 9\n")
    os.chmod(f"other/{name}", 0o755)
os.environ["PATH"] = os.path.abspath("other") + ":" + os.environ.get("PATH", "")
expect(program.find() == os.path.join(carried, "bin", "tessera"), program.find())
os.environ["TESSERA"] = os.path.abspath("other/named")
expect(program.find() == os.environ["TESSERA"], program.find())
del os.environ["TESSERA"]

# What needs no torch works without; what needs it says so in one line.
os.environ["XDG_CACHE_HOME"] = os.path.abspath("cache")
trace = tessera.load("front-4ranks-reshard2.trace")
rows = trace.plan("dgx-h100-1", space={"optimizer.variant": ["foreach", "fused"]}, strategy={"wrap": "root"})
expect(rows.best.write("strategy.py", check=False) and "peak" in rows.best.why(), rows)
for words in (["trace", "train.py:make", "-o", "model.trace"],
              ["check", "strategy.py", "train.py:make", "--experiment", rows.best.command.split()[2]]):
    said = ran(sys.executable, "-m", "tessera", *words)
    expect(said == (2, "", "tessera: torch is not installed: pip install torch==2.11.0\n"), said)
print("the wheel serves where no torch is")
