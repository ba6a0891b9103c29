"""A configuration of another tool as a strategy: what of it is known, what it costs, what one change gains."""

import json
import os
import reprlib
import shlex
import tempfile

from .. import api, disk, program
from ..errors import Refused


MOST_BYTES = 1 << 20   # of a configuration


class Config:
    """`keys`: of an experiment file; `known`: [(theirs, value, ours)]; `ignored`: [(theirs, value)], which change neither
    time nor memory here; `files`: {name: bytes}, which lie beside the experiment; `notes`: what a reader must know."""

    def __init__(self, path, keys, known, ignored, files=None, notes=()):
        self.path, self.name, self.keys, self.known, self.ignored = path, "train", keys, known, ignored
        self.files, self.notes = files or {}, notes

    def save(self, path):
        """Writes it as an experiment file (JSON, which is YAML), and its files beside that."""
        keys = {**self.keys, "strategies": {self.name: {}}}
        folder = os.path.dirname(path)
        for name, content in [*self.files.items(), (os.path.basename(path), f"{json.dumps(keys, indent=1)}\n".encode())]:
            disk.write(os.path.join(folder, name), content)

    def costs(self, path):
        """The row of `tessera compare` of the saved file."""
        return json.loads(program.run(["compare", path, "--no-traces", "--format", "json"]))["rows"][0]

    def changes(self, path):
        """Single changes: ([(settings, bytes saved at the peak)], [(settings, share of tokens/s gained)]), the largest
        first, of those that leave the numbers and the hardware as they are."""
        asked = [json.loads(program.run([command, path, "--strategy", self.name, "--format", "json"]))["what_if"]["rows"]
                 for command in ("explain", "overlap")]
        usable = [[row for row in rows if not row["failure"] and row["effect"] == "none" and not row.get("already_set")]
                  for rows in asked]
        saved = [(row["set"], row["saves_allocated_bytes"]) for row in usable[0] if row["saves_allocated_bytes"] > 0]
        gained = [(row["set"], row["gain_share"]) for row in usable[1] if row["gain_share"] >= 0.0005 and row["fits"]]
        return tuple(sorted(found, key=lambda x: -x[1]) for found in (saved, gained))


class Sections:
    """A document of sections, from which keys are taken; what is left was not understood. `place`: how a key is named, as
    "[{}] {}"; the section "" is the document itself."""

    def __init__(self, path, document, place):
        self.path, self.document, self.place, self.known = path, document, place, []

    def named(self, section, key):
        return self.place.format(section, key) if section and key else section or key

    def refuse(self, section, key, found, allowed):
        raise Refused(f"{self.path}: {shown(self.named(section, key))}: found {shown(found)}; allowed: {allowed}")

    def take(self, section, key, default, allowed, ours=None):
        """The value, which must be one of `allowed` or, if that is a type, of it; noted as `ours(value)`."""
        table = self.document.get(section, {}) if section else self.document
        value = table.pop(key, default)
        if not fits(value, allowed):
            words = {int: "an integer", bool: "true or false", str: "a text", dict: "a table", list: "a list"}.get(allowed) \
                if isinstance(allowed, type) else ", ".join(map(str, allowed))
            self.refuse(section, key, quoted(value), words)
        if ours:
            self.known.append((self.named(section, key), value, ours(value)))
        return value

    def rest(self, is_ignored):
        """[(key, value), ...] of what changes no step; the first other key is refused."""
        left = [(section, key, value) for section, table in self.document.items()
                for key, value in (table.items() if isinstance(table, dict) else [("", table)])]
        for section, key, value in left:
            if not is_ignored(section, key):
                raise Refused(f"{self.path}: {shown(self.named(section, key))}: found {quoted(value)}, which is not known; allowed: no "
                              "such key")
        return [(shown(self.named(section, key)), value) for section, key, value in left]


def quoted(value):
    """A value of the file, which may be deep or long, in some letters."""
    return reprlib.repr(value)


def shown(text):
    """A text of the file without what moves a terminal's cursor, in one line."""
    text = "".join(c if c.isprintable() else "?" for c in str(text))
    return text if len(text) <= 200 else text[:197] + "..."


def fits(value, allowed):
    if isinstance(allowed, type):
        return isinstance(value, allowed) and not (allowed is int and isinstance(value, bool))
    return any(value is known or (type(value) is type(known) and value == known) for known in allowed)


def document(path):
    """A file in YAML or JSON, whose outermost value is a table."""
    with open(path, encoding="utf-8") as f:
        try:
            text = f.read(MOST_BYTES + 1)
        except UnicodeDecodeError as error:
            raise Refused(f"{path}: {error}") from None
    if len(text) > MOST_BYTES:
        raise Refused(f"{path}: found more than {MOST_BYTES} bytes; allowed: a configuration")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = yaml(path, text)
    if not isinstance(found, dict) or not all(isinstance(key, str) for table in [found, *found.values()] if isinstance(table, dict)
                                              for key in table):
        raise Refused(f"{path}: found {quoted(found)}; allowed: a table whose keys are names")
    return found


def yaml(path, text):
    try:
        import yaml as reader
    except ImportError:
        raise Refused(f"{path}: is no JSON, and YAML is read by PyYAML; install it: pip install pyyaml") from None
    try:
        return reader.safe_load(text)
    except (reader.YAMLError, RecursionError, ValueError) as error:
        raise Refused(f"{path}: {shown(' '.join(str(error).split()))}") from None


def traced(s, keys, model, left, batch=None, seq=None, notes=()):
    """The configuration with a trace of its model; the file that the model is made by is written first."""
    target, text = model
    if text:
        replace_own(target.rpartition(":")[0], text)
    trace = api.trace(target, dtype=keys["precision"]["param"], batch=batch, seq=seq, checkpoint=keys.get("checkpoint", "none"),
                      wrap=wrapped(keys), output=keys["precision"].get("output", "none"))
    name = os.path.splitext(os.path.basename(s.path))[0] + ".tessera.trace"
    return Config(s.path, {"model": {"trace": name}, **keys}, s.known, left, {name: trace.packed}, notes)


def replace_own(path, text):
    """Writes a file that begins as `text` does, unless there is another one of that name."""
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="replace") as f:
            if f.readline() != text.partition("\n")[0] + "\n":
                raise Refused(f"{path}: is not a file that was written here; allowed: no such file, it is to be the prepared model's")
    disk.write(path, text.encode())


def wrapped(keys):
    """What a trace must have hooks at; None: its blocks."""
    entries = "root" if keys.get("api") == "ddp" else keys.get("wrap")
    if not isinstance(entries, list):
        return entries
    return [pattern for entry in entries if entry["modules"] != [""]
            for pattern in (["+".join(entry["modules"])] if entry.get("group") else entry["modules"])] or ["root"]


def place(cluster):
    """A name of a shipped cluster as it is, a file by its whole path: experiments lie elsewhere."""
    return os.path.abspath(cluster) if os.path.isfile(cluster) else cluster


def gpus(cluster, of="gpus"):
    """How many GPUs a cluster has, or `gpus_per_node`, as the program counts them."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "cluster.yaml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"model": "llama-3.2-1b", "cluster": cluster, "seq": 128, "strategies": {"one": {}}}, f)
        try:
            return json.loads(program.run(["inspect", path, "--format", "json"]))["cluster"][of]
        except Refused as error:   # without the name of that file
            raise Refused(str(error).partition(": ")[2] or str(error)) from None


def report(config, path):
    """The lines that say what was read, what it costs, and what one change gains."""
    wide = max(len(theirs) + len(str(value)) for theirs, value, _ in config.known) + 3
    yield f"{config.path} is {path}, strategy {config.name}:"
    for theirs, value, ours in config.known:
        yield f"  {f'{theirs} = {value}':{wide}}  {ours}"
    if config.ignored:
        yield "Not read, since nothing that is simulated depends on it: " + ", ".join(theirs for theirs, _ in config.ignored)
    for note in config.notes:
        yield f"Note: {note}"
    row = config.costs(path)
    time = f"{1e3 * row['step_time_s']:.1f} ms a step, {row['tokens_per_s_per_gpu']:.0f} tokens/s per GPU" \
        if row["step_time_s"] is not None else "it has no step"
    peak = f"{gib(row['peak_allocated_bytes'])} allocated at the peak, {gib(row['needed_bytes'])} needed of {gib(row['usable_bytes'])}" \
        if row["peak_allocated_bytes"] is not None else "memory is not known"
    yield f"Simulated: {time}; {peak}; fits: {row['verdict']}"
    saved, gained = config.changes(path)
    for words, found, value in (("memory", saved, lambda x: f"{gib(x)} less"), ("speed", gained, lambda x: f"{100 * x:.1f} % more tokens/s")):
        yield f"One change for {words}:" + ("" if found else " none of those tried")
        for settings, amount in found[:3]:
            yield f"  {value(amount):24}  {', '.join(settings)}"
    file = shlex.quote(path)
    yield "More:"
    for command in ("compare {}", "explain {} --strategy " + config.name, "overlap {} --strategy " + config.name):
        yield f"  tessera {command.format(file)}"


def gib(size):
    return f"{size / 2 ** 30:.2f} GiB"
