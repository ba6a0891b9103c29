"""From what a run left behind to events between markers: allocations by number, frees by allocation,
operators and finished gradients in their places."""

import bisect
import difflib

from .errors import Refused

ALLOC, FREE, CALL, GRADIENT = range(4)  # also the numbers of events in the file


class Step:
    """A marker and the events up to the next: (ALLOC, storage, bytes, stream, mark), (FREE, storage),
    (CALL, row, parameters), (GRADIENT, parameter, storage)."""

    def __init__(self, kind, module, extra):
        self.kind, self.module, self.extra, self.events = kind, module, extra, []

    def marker(self):
        return self.kind, self.module, self.extra

    def renamed(self, names):
        """Returns this step with other numbers of storages."""
        at = {ALLOC: 1, FREE: 1, GRADIENT: 2}
        step = Step(self.kind, self.module, self.extra)
        step.events = [(*e[:at[e[0]]], names[e[at[e[0]]]], *e[at[e[0]] + 1:]) if e[0] in at else e for e in self.events]
        return step


def steps(result):
    """The iterations of a run, each a list of steps."""
    streams = {0: 0}
    log = result["log"]   # markers and operators in the order in which they happened
    workspace = [entry[4:6] for entry in log if entry[1] == "call" and entry[0] > entry[4][0]]
    starts = [w[0][0] for w in workspace]
    changes = result["running"]
    change_at = [position for position, _ in changes]

    def mark_of(at, address, phase):
        i = bisect.bisect_right(starts, at) - 1
        if i >= 0 and at < workspace[i][0][1] and address not in workspace[i][1]:
            return "w"
        j = bisect.bisect_right(change_at, at) - 1
        return "a" if phase == "backward" and j >= 0 and changes[j][1] else ""

    iterations, live, phase, number = [], {}, "", 0
    following = iter([*log, (1 << 62, "nothing more")])
    entry = next(following)
    at = result["base"]
    for is_alloc, address, size, stream in [*result["history"], (None, 0, 0, 0)]:
        while entry[0] <= at:
            _, kind, what, extra = entry[:4]
            if kind == "call":
                if what:
                    iterations[-1][-1].events.append((CALL, what, extra))
            elif kind == "grad":
                iterations[-1][-1].events.append((GRADIENT, what, live[extra]))
            else:
                if kind == "inputs":
                    iterations.append([])
                phase = kind if what < 0 and kind != "final" else phase
                iterations[-1].append(Step(kind, what, extra))
            entry = next(following)
        if is_alloc:
            stream = streams.setdefault(stream, len(streams))
            iterations[-1][-1].events.append((ALLOC, number, size, stream, mark_of(at, address, phase)))
            live[address] = number
            number += 1
        elif is_alloc is not None:
            if address not in live:
                raise Refused(f"{result['held'].get(address, 'a tensor that was there before the first step')}: is replaced by "
                              "another tensor in a step, which frees it: not supported; change it in place, or make it of its last shape "
                              "and dtype")
            iterations[-1][-1].events.append((FREE, live.pop(address)))
        at += 1
    iterations[-1].pop()   # the marker behind the last event
    return iterations


def tokens(events, sizes):
    """What two runs are compared by: sizes and streams of allocations and frees."""
    found = []
    for e in events:
        if e[0] == ALLOC:
            sizes[e[1]] = (e[2], e[3])
            found.append((ALLOC, e[2], e[3]))
        elif e[0] == FREE:
            found.append((FREE, *sizes[e[1]]))
    return found


def merge(plain, instrumented):
    """Puts operators and marks of the instrumented run into the plain one, in place: at the same place
    where both allocate alike, behind the last common event elsewhere."""
    sizes_plain, sizes_other = {}, {}
    for steps_plain, steps_other in zip(plain, instrumented):
        if [s.marker() for s in steps_plain] != [s.marker() for s in steps_other]:
            raise Refused("two runs of the model took different ways: it is not deterministic")
        for ours, theirs in zip(steps_plain, steps_other):
            ours.events = _merged(ours.events, theirs.events, sizes_plain, sizes_other)


def _merged(ours, theirs, sizes_ours, sizes_theirs):
    a, b = tokens(theirs, sizes_theirs), tokens(ours, sizes_ours)
    if a == b:
        place = {i: i for i in range(len(a))}
    else:
        matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
        place = {m.a + i: m.b + i for m in matcher.get_matching_blocks() for i in range(m.size)}
    calls, marks, seen, last = {}, {}, 0, 0
    for e in theirs:
        if e[0] == CALL:
            calls.setdefault(last, []).append(e)
        elif e[0] != GRADIENT:
            if seen in place:
                last = place[seen] + 1
                if e[0] == ALLOC:
                    marks[place[seen]] = e[4]
            seen += 1
    result, seen = list(calls.get(0, [])), 0
    for e in ours:
        if e[0] == ALLOC:
            e = (*e[:4], marks.get(seen, ""))
        result.append(e)
        if e[0] in (ALLOC, FREE):
            seen += 1
            result += calls.get(seen, [])
    return result
