"""The trace file (../TRACE.md): distinct segments once, storages named relative to their segment, so
that a deep model is as short as a shallow one and equal models give equal bytes."""

import gzip
import hashlib
import io
import json

from .events import ALLOC, CALL, FREE, GRADIENT

VERSION = 1


class Writer:
    """Collects the distinct operators and segments of all variants."""

    def __init__(self):
        self.ops, self.segments, self.classes = {}, {}, []
        self._class_of = {}   # list of allocations -> class

    def steps(self, iterations):
        """The step lists of one run; its iterations share their storages. The last list is what every later step plays. Where the
        model keeps tensors from step to step, that step may have other names for those that it frees than the one before it had:
        then it is a third list."""
        instances = _Instances()
        lists = [self._steps(steps, instances) for steps in iterations]
        following = repeated(iterations)
        before = dict(self.ops), dict(self.segments), list(self.classes), dict(self._class_of)
        again = self._steps(following, instances) if following else lists[-1]
        if played(again) != played(lists[-1]):
            return lists + [again]
        self.ops, self.segments, self.classes, self._class_of = before   # nothing needs its segments
        return lists

    def _steps(self, steps, instances):
        return [[s.kind, s.module, s.extra, *self._segment(s.events, instances)] for s in steps]

    def _segment(self, events, instances):
        """The number of the segment that these events are an instance of, and the base."""
        allocations = tuple(e[2:] for e in events if e[0] == ALLOC)
        kind = self._class_of.get(allocations)
        named = [p for e in events if e[0] == CALL for p in e[2]] + [e[1] for e in events if e[0] == GRADIENT]
        base = min(named, default=0)
        local, rows = {}, []
        for e in events:
            if e[0] == ALLOC:
                local[e[1]] = len(local)
                rows.append((ALLOC, e[2], *((e[3], e[4]) if e[4] else (e[3],) if e[3] else ())))
            elif e[0] == FREE:
                rows.append((FREE, *instances.name(e[1], local)))
                instances.free(e[1])
            elif e[0] == CALL:
                op = self.ops.setdefault(e[1], len(self.ops))
                reads = tuple(p - base for p in e[2])
                rows.append((CALL, op, reads) if reads else (CALL, op))
            else:
                rows.append((GRADIENT, e[1] - base, *instances.name(e[2], local)))
        number = self.segments.setdefault(tuple(rows), len(self.segments))
        if number == len(self.classes):
            self.classes.append(self._class_of.setdefault(allocations, number))
        instances.play(self.classes[number] if kind is None else kind, local)
        return number, base


class _Instances:
    """Played segments by class, and which of their storages live: what a name is relative to."""

    def __init__(self):
        self._home = {}    # storage -> (class, number in it)
        self._alive = {}   # (class, number in it) -> storages that live, the oldest first
        self._freed = set()

    def name(self, storage, local):
        if storage in local:
            return (local[storage],)
        kind, n = self._home[storage]
        alive = self._alive[kind, n]
        back = len(alive) - 1 - alive.index(storage)
        return (n, kind, back) if back else (n, kind)

    def free(self, storage):
        if storage in self._home:
            self._alive[self._home[storage]].remove(storage)
        else:
            self._freed.add(storage)   # of the segment that is being written

    def play(self, kind, local):
        for storage, n in local.items():
            self._home[storage] = kind, n
            if storage not in self._freed:
                self._alive.setdefault((kind, n), []).append(storage)
        self._freed.clear()


def played(steps):
    """What a reader plays: gradients and states are the strategy's."""
    return [step for step in steps if step[0] not in ("zero_grad", "optimizer")]


def repeated(iterations):
    """The step after the last one, which does the same: it frees what that one leaves where that one freed what was left to it.
    None: what is left differs, so that nothing can be said."""
    places = [_places(steps) for steps in iterations]
    freed = {e[1] for step in iterations[-1] for e in step.events if e[0] == FREE}
    left, names = {}, {storage: -1 - storage for storage in places[-1]}   # storages of the next step have numbers of their own
    for storage, place in places[-1].items():
        if storage not in freed:
            left.setdefault(place, []).append(storage)
    for storage in sorted(freed - set(places[-1])):
        place = next(found[storage] for found in places if storage in found)
        if not left.get(place):
            return None
        names[storage] = left[place].pop(0)
    return [step.renamed(names) for step in iterations[-1]]


def _places(steps):
    """storage -> the parameter that it is the gradient of, or where a step allocates it: the marker, which of its kind that is,
    size and stream."""
    found, markers = {}, {}
    for step in steps:
        markers[step.marker()] = markers.get(step.marker(), 0) + 1
        found |= {e[1]: (step.kind, step.module, markers[step.marker()], e[2], e[3]) for e in step.events if e[0] == ALLOC}
        found |= {e[2]: ("gradient", e[1]) for e in step.events if e[0] == GRADIENT and e[2] in found}
    return found


def content(made_by, model, tables, writer, variants):
    result = {"tessera_trace": VERSION, "made_by": made_by, "model": model, "variants": variants, **tables,
              "ops": [[name, [list(s) for s in shapes], dtype, *numbers]
                      for name, shapes, dtype, *numbers in writer.ops],
              "segments": [list(s) for s in writer.segments], "classes": writer.classes}
    hashed = {k: v for k, v in result.items() if k != "made_by"}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    result["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return result


def pack(trace):
    text = json.dumps(trace, separators=(",", ":"), ensure_ascii=True).encode()
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=9, mtime=0) as f:
        f.write(text)
    return buffer.getvalue()
