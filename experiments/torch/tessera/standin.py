"""The library that takes CUDA's place, and whether it fits the torch that is installed. Nothing here
imports torch: the library must be loaded before it."""

import importlib.metadata
import importlib.util
import os
import re
import struct
from pathlib import Path

from .errors import Refused

TESTED = ("2.11",)
OLDEST = (2, 8)
# What torch imports from the CUDA runtime and the stand-in leaves to the real one: registration of
# kernels, graphs, memory pools, sharing between processes, profiling. No traced run calls the others.
LEFT = re.compile(r"__cuda(Init|Register|Unregister)|cudaGraph|cudaIpc|cudaMemPool|cudaProfiler|cuda\w*Async"
                  r"|cudaDeviceGetDefaultMemPool|cudaStream(Begin|End)Capture")
RUNTIME = re.compile(r"(__)?cuda[A-Z]")


def library():
    """The path of the stand-in that the package's build made."""
    found = importlib.util.find_spec("tessera._standin")
    if found is None or not found.origin:
        raise Refused("the stand-in device was not built: install the package with "
                      "pip install ./experiments/torch")
    return found.origin


def torch_found():
    """Folder and version of the torch that is installed, without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        raise Refused("torch is not installed: pip install torch==2.11.0")
    folder = Path(found.origin).parent
    text = (folder / "version.py").read_text(encoding="utf-8")
    version = re.search(r"__version__ = '([^']*)'", text)
    cuda = re.search(r"^cuda[^=]*= '([^']*)'", text, re.M)
    return folder, version.group(1) if version else importlib.metadata.version("torch"), \
        cuda.group(1) if cuda else None


def check():
    """The CUDA version of the torch found, and notes for the person who traces."""
    folder, version, cuda = torch_found()
    if cuda is None or not (folder / "lib" / "libtorch_cuda.so").exists():
        raise Refused(f"torch {version} has no CUDA libraries: a trace needs the CUDA build (no GPU), "
                      "pip install torch==2.11.0")
    numbers = tuple(int(x) for x in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        raise Refused(f"torch {version} is too old to be traced: 2.8 or later, tested with "
                      + ", ".join(TESTED))
    notes = []
    if ".".join(map(str, numbers)) not in TESTED:
        notes.append(f"torch {version} is not a tested version ({', '.join(TESTED)}): check a strategy "
                     "before you rely on its figures")
    missing = [s for s in imports(folder / "lib" / "libc10_cuda.so")
               + imports(folder / "lib" / "libtorch_cuda.so")
               if RUNTIME.match(s) and not LEFT.match(s) and s not in exports(library())]
    if missing:
        notes.append(f"torch {version} calls functions of CUDA that the stand-in does not have: "
                     + ", ".join(sorted(set(missing))))
    return cuda, notes


def environment(cuda):
    """What the child process is started with."""
    preload = [library(), *filter(None, [os.environ.get("LD_PRELOAD")])]
    return {**os.environ, "LD_PRELOAD": ":".join(preload), "TESSERA_STANDIN_CUDA": cuda,
            "TESSERA_STANDIN_BYTES": str(1 << 44), "CUDA_VISIBLE_DEVICES": "0"}


_symbols = {}


def imports(path):
    return [name for name, defined in symbols(path) if not defined]


def exports(path):
    return [name for name, defined in symbols(path) if defined]


def symbols(path):
    """[(name, is defined), ...] of the dynamic symbol table of a 64-bit little-endian ELF file."""
    path = str(path)
    if path not in _symbols:
        with open(path, "rb") as f:
            head = f.read(64)
            if head[:6] != b"\x7fELF\x02\x01":
                raise Refused(f"{path}: not a 64-bit library of Linux")
            at, size, count = *struct.unpack_from("<Q", head, 40), *struct.unpack_from("<HH", head, 58)
            f.seek(at)
            table = f.read(size * count)
            sections = [struct.unpack_from("<IIQQQQII", table, i * size) for i in range(count)]
            found = []
            for _, kind, _, _, offset, length, link, _ in sections:
                if kind != 11:   # SHT_DYNSYM
                    continue
                f.seek(offset)
                entries = f.read(length)
                f.seek(sections[link][4])
                names = f.read(sections[link][5])
                for i in range(0, length, 24):
                    name, _, _, section = struct.unpack_from("<IBBH", entries, i)
                    end = names.index(b"\0", name)
                    found.append((names[name:end].decode("ascii", "replace"), section != 0))
        _symbols[path] = found
    return _symbols[path]
