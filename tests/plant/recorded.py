"""Whether memory of a scenario of tests/golden-bridge is what was recorded: recorded.py SCENARIO.json. Status 1: it is not."""
import json
import os
import subprocess
import sys
import tempfile

golden = sys.argv[1]
with tempfile.TemporaryDirectory() as folder:
    out = os.path.join(folder, "result.json")
    subprocess.run([os.environ["TESSERA"], "memory", golden, "--trace", golden[:-len("json")] + "trace", "-o", out],
                   check=True)
    with open(out, encoding="utf-8") as a, open(golden, encoding="utf-8") as b:
        predicted, recorded = (json.load(f)["allocator"]["phases"] for f in (a, b))
sys.exit(predicted != recorded)
