"""A reader of traces in a few lines, for tests: segments played back into events with absolute numbers."""


def played(trace, iterations):
    """[(kind, module, extra, events)] with storages numbered from 0 in order of allocation."""
    alive, number, steps = {}, 0, []
    for step in [s for iteration in iterations for s in iteration]:
        kind, module, extra, segment, base = step
        own, events = [], []

        def storage(name):
            if len(name) == 1:
                return own[name[0]]
            n, home = name[0], name[1]
            back = name[2] if len(name) > 2 else 0
            return alive[home, n][-1 - back]

        gone = set()
        for e in trace["segments"][segment]:
            if e[0] == 0:
                own.append(number)
                events.append(("alloc", number, e[1]))
                number += 1
            elif e[0] == 1:
                freed = storage(e[1:])
                events.append(("free", freed))
                if len(e) > 2:
                    alive[e[2], e[1]].remove(freed)
                gone.add(freed)
            elif e[0] == 2:
                events.append(("call", e[1], tuple(base + r for r in (e[2] if len(e) > 2 else ()))))
            else:
                events.append(("gradient", base + e[1], storage(e[2:])))
        for n, s in enumerate(own):
            if s not in gone:
                alive.setdefault((trace["classes"][segment], n), []).append(s)
        steps.append((kind, module, extra, events))
    return steps
