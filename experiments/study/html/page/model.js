/* model.js: the study and the views of its strategies, unpacked (html_view.c writes them). */
T.unpack = function (text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  let at = 0;
  return {
    get more() { return at < bytes.length; },
    next() {
      let value = 0, scale = 1, byte;
      do {
        byte = bytes[at++];
        value += (byte & 127) * scale;
        scale *= 128;
      } while (byte & 128);
      return value;
    },
    signed() {
      const value = this.next();
      return value % 2 ? -(value + 1) / 2 : value / 2;
    },
  };
};
T.words = function (list) {
  let before = '';
  return list.map(([shared, rest]) => (before = before.slice(0, shared) + rest));
};

T.load = function () {
  T.study = JSON.parse(document.getElementById('study').textContent);
  T.sources = new Map();
  for (const node of document.querySelectorAll('script.view')) T.sources.set(Number(node.dataset.view), node);
  T.views = new Map();
};

/* The view of a strategy by its number, unpacked when it is first asked for; null: it has none. */
T.view = function (number) {
  if (!T.views.has(number)) {
    const source = T.sources.get(number);
    T.views.set(number, source ? new T.View(JSON.parse(source.textContent)) : null);
  }
  return T.views.get(number);
};

T.View = class {
  constructor(data) {
    Object.assign(this, { strategy: data.strategy, step: data.step_s, limit: data.usable_bytes, phases: data.phases, parts: data.parts, reasons: data.reasons, totals: data.totals, rank: data.rank, measured: data.measured, compute: data.compute });
    this.quantum = data.quantum_s;
    this.modules = T.words(data.modules);
    this.ops = T.words(data.ops);
    this.kinds = data.kinds.map(([op, group, bytes, flop, comm]) => ({ op: this.ops[op], group, bytes, flop, comm }));
    this.lanes = [...data.streams, 'host'].map((name, stream) => ({ name, stream, items: [] }));
    this.readSlices(data);
    this.readMemory(data.memory);
  }

  readSlices(data) {
    const pack = T.unpack(data.slices.data), q = this.quantum;
    let start = 0, owner = 0;
    this.slices = [];
    while (pack.more) {
      const lane = pack.next();
      start += pack.signed();
      const length = pack.next(), late = pack.signed(), kind = this.kinds[pack.next()];
      owner += pack.signed();
      const slice = { lane, start: start * q, end: (start + length) * q, issue: (start - late) * q, kind, module: this.modules[owner], part: this.parts[pack.next()], count: pack.next(), exposed: 0, why: null, number: this.slices.length };
      this.slices.push(slice);
      this.lanes[lane].items.push(slice);
    }
    for (const [number, exposed, hidden, beside, ...why] of data.exposed) {
      if (number < 0) continue;
      Object.assign(this.slices[number], { collective: true, exposed: exposed * 1e-9, hidden: hidden * 1e-9, beside: beside * 1e-9 });
      if (why.length) this.slices[number].why = why.map((ns) => ns * 1e-9);
    }
    this.readHost();
    for (const lane of this.lanes) lane.items.sort((a, b) => a.start - b.start);
    this.lanes = this.lanes.filter((lane) => lane.items.length);
    /* When compute runs, joined. */
    this.busy = [];
    for (const lane of this.lanes.filter((l) => l.stream === this.compute)) {
      for (const item of lane.items) {
        const last = this.busy[this.busy.length - 1];
        if (item.collective) continue;
        if (last && item.start <= last[1]) last[1] = Math.max(last[1], item.end);
        else this.busy.push([item.start, item.end]);
      }
    }
    this.exposed = this.slices.filter((slice) => slice.exposed > 0);
  }

  /* The host is busy with a launch from the end of the one before to its issue; slices are in its order. */
  readHost() {
    const number = this.lanes.length - 1, host = this.lanes[number], launch = { op: 'launch', group: 11, bytes: 0, flop: 0 };
    let before = this.slices.length ? this.slices[0].issue : 0;
    for (const slice of this.slices) {
      const waits = slice.lane === number;
      if (!waits && slice.issue > before) host.items.push({ lane: number, start: before, end: slice.issue, issue: before, kind: launch, module: slice.module, part: slice.part, count: slice.count, of: slice, exposed: 0, why: null });
      before = Math.max(before, waits ? slice.end : slice.issue);
    }
  }

  /* The parts of [from, to) in which compute stands still. */
  idle(from, to) {
    const out = [];
    let low = 0, high = this.busy.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.busy[middle][1] > from) high = middle;
      else low = middle + 1;
    }
    for (let at = from; at < to; low++) {
      const next = low < this.busy.length ? this.busy[low] : [to, to];
      if (next[0] > at) out.push([at, Math.min(next[0], to)]);
      at = Math.max(at, next[1]);
      if (low >= this.busy.length) break;
    }
    return out;
  }

  reason(slice) {
    if (!slice.why) return -1;
    return slice.why.indexOf(Math.max(...slice.why));
  }

  /* ---- memory ---- */

  readMemory(data) {
    const pack = T.unpack(data.events), n = data.n_events, width = data.categories.length;
    const events = { n, time: new Float64Array(n), type: new Uint8Array(n), what: new Int32Array(n), change: new Float64Array(n) };
    const levels = new Float64Array((n + 1) * width), total = new Float64Array(n + 1);
    const allocs = [];
    let time = 0, owner = 0;
    for (let i = 0; i < n; i++) {
      const head = pack.next();
      time += Math.floor(head / 3);
      events.time[i] = time * this.quantum;
      events.type[i] = head % 3;
      levels.copyWithin((i + 1) * width, i * width, (i + 1) * width);
      let category, change;
      if (head % 3 === 0) {
        category = pack.next();
        owner += pack.signed();
        const alloc = { category, module: this.modules[owner], op: this.ops[pack.next()], bytes: data.sizes[pack.next()], number: allocs.length, from: i, to: Infinity };
        change = alloc.bytes;
        events.what[i] = allocs.length;
        allocs.push(alloc);
      } else if (head % 3 === 1) {
        const alloc = allocs[allocs.length - pack.next()];
        alloc.to = i;
        category = alloc.category;
        change = -alloc.bytes;
        events.what[i] = alloc.number;
      } else {
        category = pack.next();
        change = pack.signed();
        events.what[i] = category;
      }
      events.change[i] = change;
      levels[(i + 1) * width + category] += change;
      total[i + 1] = total[i] + change;
    }
    const reserved = { time: [], bytes: [] }, changes = T.unpack(data.reserved.data);
    for (let t = 0, b = 0; changes.more;) {
      t += changes.next();
      b += changes.signed();
      reserved.time.push(t * this.quantum);
      reserved.bytes.push(b);
    }
    const used = T.unpack(data.in_use.data), inUse = [];
    for (let b = 0; used.more;) inUse.push((b += used.signed()) * 1024);
    const occurs = data.order.filter((c) => {
      for (let i = c; i < levels.length; i += width) if (levels[i] > 0) return true;
      return false;
    });
    this.memory = { events, levels, total, allocs, width, occurs, reserved, inUse, categories: data.categories, peak: data.peak, leftOut: data.left_out_below_bytes };
  }

  /* How many events lie at or before a time: the state then is that after them. */
  eventsAt(seconds) {
    const time = this.memory.events.time;
    let low = 0, high = time.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (time[middle] <= seconds) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /* What is alive after n events: sums by category, module and what for, the largest first. */
  alive(n) {
    const sums = new Map(), small = new Map(), { allocs, events, categories } = this.memory;
    for (const alloc of allocs) {
      if (alloc.from >= n) break;
      if (alloc.to < n) continue;
      const key = alloc.category + '\n' + alloc.module + '\n' + alloc.op;
      const sum = sums.get(key) || { category: categories[alloc.category], module: alloc.module, op: alloc.op, bytes: 0, n: 0 };
      sum.bytes += alloc.bytes;
      sum.n++;
      sums.set(key, sum);
    }
    if (this.memory.leftOut) {
      for (let i = 0; i < n; i++) {
        if (events.type[i] === 2) small.set(events.what[i], (small.get(events.what[i]) || 0) + events.change[i]);
      }
      for (const [category, bytes] of small) {
        if (bytes > 0) sums.set(category, { category: categories[category], module: 'buffers under ' + T.bytes(this.memory.leftOut), op: '', bytes, n: 0 });
      }
    }
    return [...sums.values()].sort((a, b) => b.bytes - a.bytes);
  }

  reservedAt(seconds) {
    const { time, bytes } = this.memory.reserved;
    let low = 0, high = time.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (time[middle] <= seconds) low = middle + 1;
      else high = middle;
    }
    return low ? bytes[low - 1] : 0;
  }

  inUseBetween(from, to) {
    const levels = this.memory.inUse, n = levels.length, scale = n / this.step;
    const last = Math.min(n - 1, Math.max(0, Math.ceil(to * scale) - 1));
    let most = 0;
    for (let i = Math.min(last, Math.max(0, Math.floor(from * scale))); i <= last; i++) most = Math.max(most, levels[i]);
    return most;
  }

  phaseAt(seconds) {
    return this.phases.find(([, from, to]) => seconds >= from && seconds < to) || this.phases[this.phases.length - 1];
  }
};
