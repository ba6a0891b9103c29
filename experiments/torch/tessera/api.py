"""A trace as an object: made from a person's model, saved, asked for strategies."""

import base64
import gzip
import hashlib
import html
import json
import os
import re
import shlex
import sys
import tempfile
import zlib

from . import disk, program, start
from .errors import Refused, TraceError, Unchecked

DTYPES = ("bf16", "fp16", "fp32", "none", "autocast-bf16", "autocast-fp16")
OUTPUTS = ("none", "bf16", "fp16", "fp32")
DDP = ("none", "find_unused", "static_graph")
CHECKPOINTS = ("none", "full", "every2", "selective")
SDPA = ("flash", "efficient", "math")


def trace(target, dtype="bf16", batch=None, seq=None, checkpoint="none", blocks=None, sdpa="flash",
          readbacks=None, load_factor=1.0, wrap=None, output="none", ddp="none"):
    """Traces `FILE.py:FUNCTION`, whose function returns (model, batch, loss function).

    dtype: what parameters are computed in (the policy's param_dtype), or autocast-bf16. none: no cast, each is
    computed in the dtype that the function made it with; fp32 says the same of the usual weights.
    batch, seq: a number or several, given to the function as arguments of these names.
    checkpoint: none, full, every2, selective; one or several, over the model's blocks.
    blocks: patterns of module names ('model.layers.*'); found without, where the model has one list.
    readbacks: {"module:operator": integer} for values that the program asks the device for.
    wrap: patterns of the modules that strategies will wrap, instead of the blocks and what is beside them; "root":
        the model alone; "norm+head": both in one call. A trace whose hooks change nothing serves every strategy that wraps some of them.
    load_factor: of the busiest expert where routing decides about shapes; 1.0 is balanced.
    output: what wrapped modules cast their outputs to (the policy's output_dtype): bf16, fp16, fp32 or none.
    ddp: find_unused or static_graph, for strategies of DDP with this option: DDP then clones the model's outputs in every step,
        or in the first; none for all others.
    """
    if not callable(getattr(target, "rpartition", None)):
        raise Refused("name the function that makes the model as 'FILE.py:FUNCTION': it runs in "
                      "another process")
    request = {
        "target": target,
        "dtype": one_of("dtype", dtype, DTYPES), "batch": numbers("batch", batch),
        "seq": numbers("seq", seq), "checkpoint": [one_of("checkpoint", c, CHECKPOINTS)
                                                   for c in several(checkpoint)],
        "blocks": several(blocks) if blocks else None, "sdpa": one_of("sdpa", sdpa, SDPA),
        "readbacks": dict(readbacks or {}), "load_factor": load_factor,
        "wrap": several(wrap) if wrap else None, "output": one_of("output", output, OUTPUTS), "ddp": one_of("ddp", ddp, DDP),
    }
    if not 1.0 <= load_factor <= 1024:
        raise Refused(f"load_factor: {load_factor} is not within 1.0 and 1024")
    return Trace(start.child(request))


def load(path):
    """A saved trace. The program reads and checks the file first: keys, sizes, nesting and hash have one
    reader and one set of limits, and what it refuses is one line."""
    path = os.fspath(path)
    none = f"{path}: is no trace; allowed: a file that `python -m tessera trace` wrote"
    try:
        if not os.path.isfile(path):
            raise TraceError(f"{path}: is no file")
        with open(path, "rb") as f:
            if f.read(2) != b"\x1f\x8b":
                raise TraceError(none)
            program.run(["inspect", "--format", "json", os.path.abspath(path)])
            f.seek(0)
            return Trace(f.read())
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
    except (EOFError, ValueError, zlib.error):   # behind the compressed text, which the program leaves
        raise TraceError(none) from None
    except Refused as error:
        raise TraceError(str(error)) from None


def several(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def one_of(name, value, allowed):
    if value not in allowed:
        raise Refused(f"{name}: {value!r} is not one of {', '.join(allowed)}")
    return value


def numbers(name, value):
    found = [] if value is None else several(value)
    for n in found:
        if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n < 1 << 31:
            raise Refused(f"{name}: {n!r} is not a positive number")
    return found


class Trace:
    def __init__(self, packed):
        self.packed = packed
        self.content = json.loads(gzip.decompress(packed))
        if self.content.get("tessera_trace") != 1:
            raise ValueError("another version")

    @property
    def variants(self):
        return [v["name"] for v in self.content["variants"]]

    @property
    def hash(self):
        return self.content["sha256"]

    def save(self, path):
        disk.write(path, self.packed)

    def modules(self):
        """Names of modules that can be wrapped, as in `named_modules()`."""
        return [m[0] for m in self.content["modules"]]

    def plan(self, cluster, memory=None, strategy=None, space=None, top=5):
        """The fastest strategies that fit `memory` ("70 GiB"; default: what the card has)."""
        wanted = {"space": space} if space else {}
        if memory is not None:
            wanted["budget_gib"] = gib(memory)
        experiment = self._experiment(cluster, {"base": strategy or {}})
        if wanted:
            experiment["plan"] = wanted
        return self._ask("plan", experiment, "--top", str(top))

    def compare(self, cluster, strategies):
        """A row for each of {name: keys of an experiment file}."""
        return self._ask("compare", self._experiment(cluster, strategies), "--no-traces")

    def _experiment(self, cluster, strategies):
        first = self.content["variants"][0]
        size = {"batch": first["batch"]} | ({"seq": first["seq"]} if first["seq"] else {})
        return {"title": self.content["model"]["source"], "cluster": cluster, **size,
                "strategies": strategies}

    def _ask(self, command, experiment, *options):
        """Asks the program. Trace and experiment stay in the cache, since rows carry commands that name them."""
        folder = disk.folder(self.hash)
        stem = re.match(r"[\w-]*", self.content["model"]["source"])[0] or "model"   # what pictures call the model
        trace = os.path.join(folder, stem + ".trace")
        self.save(trace)
        text = json.dumps({"model": {"trace": trace}, **experiment})   # JSON is YAML
        name = hashlib.sha256(text.encode()).hexdigest()[:16] + ".yaml"
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            f.write(text)
        return Rows(json.loads(program.run([command, f.name, "--format", "json", *options])),
                    f.name, self.content["model"]["source"])


def gib(text):
    number, _, unit = str(text).partition(" ")
    try:
        return float(number) * {"GiB": 1, "MiB": 1 / 1024, "": 1}[unit]
    except (KeyError, ValueError):
        raise Refused(f"memory: {text!r} is not like '70 GiB'") from None


class Row:
    """One strategy; the columns of the program's JSON are its attributes."""

    def __init__(self, columns, file, source):
        self.__dict__.update(columns)
        self._source = source
        command = columns.get("command")   # of a plan's row: "tessera sim FILE --strategy base --set batch=2"
        self._words = shlex.split(command)[2:] if command else [file, "--strategy", columns["strategy"]]

    def write(self, path, check=None):
        """Writes the strategy as PyTorch code. check: run it with the real FSDP2 or DDP on the stand-in device and compare every
        figure; None: if the file that made the model is in this folder. Returns the path."""
        with tempfile.TemporaryDirectory() as folder:
            program.run(["sim", *self._words, "--emit", "torch", folder])
            written, = (name for name in os.listdir(folder) if name.endswith(".py"))
            with open(os.path.join(folder, written), "rb") as f:
                disk.write(path, f.read())
        if check or check is None and os.path.isfile(self._source.rpartition(":")[0]):
            self._check(path, check)
        return path

    def _check(self, path, must):
        from . import check as checks
        try:
            predicted, found = checks.check(path, self._source, named=self._words[0])
        except Unchecked as error:
            if must:
                raise
            print(f"tessera: note: {path}: written, not checked: {error}", file=sys.stderr)
            return
        if found:
            raise Refused("; ".join(line.strip() for line in checks.report(path, predicted, found)))

    def why(self):
        """Why the memory peaks where it does, and what would lower it, in words."""
        return program.run(["explain", *self._words])

    def memory(self):
        """The same as data: the peak, what is alive there by category and owner, what would lower it."""
        return json.loads(program.run(["explain", *self._words, "--format", "json"]))

    def report(self, folder):
        """Leaves tables, pictures, traces and a page in a folder. Returns the page's path."""
        program.run(["sim", *self._words, "--out", folder, "--format", "json"])
        return os.path.join(folder, "report.html")

    def _repr_html_(self):
        """Memory over the steady iteration, drawn by gnuplot where it is installed."""
        with tempfile.TemporaryDirectory() as folder:
            program.run(["sim", *self._words, "--out", folder, "--pictures", "svg", "--format", "json"])
            pictures = [os.path.join(at, "memory.svg") for at, _, names in os.walk(folder) if "memory.svg" in names]
            if not pictures:
                return f"<pre>{html.escape(repr(self))}</pre>"
            with open(pictures[0], "rb") as f:
                picture = base64.b64encode(f.read()).decode()
        return (f'<figure><img src="data:image/svg+xml;base64,{picture}" alt="memory over an iteration">'
                f"<figcaption>{html.escape(repr(self))}</figcaption></figure>")

    def __repr__(self):
        name = getattr(self, "strategy", None) or self.settings
        time = "?" if self.step_time_s is None else f"{self.step_time_s:.4f} s"
        peak = self.peak_allocated_bytes
        peak = "?" if peak is None else f"{peak / 2 ** 30:.3f} GiB"
        return f"{name}: {time}, peak {peak}, fits: {self.verdict}"


class Rows:
    def __init__(self, result, file, source):
        self.result = result
        self.rows = [Row(r, file, source) for r in result["rows"]]

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]

    def __repr__(self):
        return "\n".join(map(repr, self.rows))

    def _repr_html_(self):
        cells = [(getattr(r, "strategy", None) or r.settings, r.step_time_s, r.peak_allocated_bytes, r.verdict)
                 for r in self.rows]
        lines = [(name, "?" if time is None else f"{1e3 * time:.2f}", "?" if peak is None else f"{peak / 2 ** 30:.2f}", fits)
                 for name, time, peak, fits in cells]
        body = "".join("<tr>" + "".join(f"<td>{html.escape(str(x))}</td>" for x in line) + "</tr>" for line in lines)
        return ("<table><tr><th>strategy</th><th>step ms</th><th>peak GiB</th><th>fits</th></tr>" + body + "</table>")

    @property
    def best(self):
        """The fastest that fits."""
        fitting = [r for r in self.rows if r.fits and r.step_time_s is not None]
        if not fitting:
            raise Refused("no strategy fits")
        return min(fitting, key=lambda r: r.step_time_s)
