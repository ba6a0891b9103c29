"""unpack.py: reads what a report.html holds, as page/model.js does, without the page."""
import base64
import json
import re


class Pack:
    def __init__(self, text):
        self.data = base64.b64decode(text)
        self.at = 0

    def more(self):
        return self.at < len(self.data)

    def next(self):
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return value

    def signed(self):
        value = self.next()
        return -(value + 1) // 2 if value % 2 else value // 2


def words(items):
    out, before = [], ''
    for shared, rest in items:
        before = before[:shared] + rest
        out.append(before)
    return out


def page(path):
    """The study, and the views of its strategies by number."""
    with open(path, encoding='utf-8') as file:
        text = file.read()
    study = re.search(r'<script type="application/json" id="study">(.*?)</script>', text, re.S)
    views = re.findall(r'<script type="application/json" class="view" data-view="(\d+)">(.*?)</script>', text, re.S)
    return json.loads(study.group(1)), {int(number): View(json.loads(view)) for number, view in views}


class View:
    def __init__(self, data):
        self.data = data
        self.quantum = data['quantum_s']
        self.modules, self.ops = words(data['modules']), words(data['ops'])
        self.slices = list(self.read_slices(Pack(data['slices']['data'])))
        self.read_memory(data['memory'])

    def read_slices(self, pack):
        start = owner = 0
        while pack.more():
            lane = pack.next()
            start += pack.signed()
            length, late, kind = pack.next(), pack.signed(), pack.next()
            owner += pack.signed()
            yield {'lane': lane, 'start': start, 'end': start + length, 'issue': start - late, 'kind': self.data['kinds'][kind],
                   'module': self.modules[owner], 'part': self.data['parts'][pack.next()], 'count': pack.next()}

    def read_memory(self, data):
        """levels[n]: bytes by category after n events; times[n - 1]: of the n-th; alive: after the peak's."""
        pack, allocs, level, owner, time = Pack(data['events']), [], [0] * len(data['categories']), 0, 0
        self.levels, self.times, self.alive, alive = [list(level)], [], None, {}
        while pack.more():
            later, kind = divmod(pack.next(), 3)
            time += later
            if kind == 0:
                category = pack.next()
                owner += pack.signed()
                op, change = self.ops[pack.next()], data['sizes'][pack.next()]
                alive[len(allocs)] = (category, self.modules[owner], op, change)
                allocs.append((category, change))
            elif kind == 1:
                number = len(allocs) - pack.next()
                category, change = allocs[number][0], -allocs[number][1]
                del alive[number]
            else:
                category, change = pack.next(), pack.signed()
            level[category] += change
            self.levels.append(list(level))
            self.times.append(time * self.quantum)
            if len(self.times) == data['peak']['events']:
                self.alive = dict(alive)
