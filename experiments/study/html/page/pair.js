/* pair.js: two strategies beside each other: their steps are cut into visits of modules by phase, visits of the same
 * module are aligned, and memory, time and exposed communication are compared there. */

/* The step cut where the compute stream goes on to another block or phase: [{key, phase, micro, block, from, to}] */
T.sections = function (view) {
  const out = [];
  const lane = view.lanes.find((l) => l.stream === view.compute);
  for (const item of lane ? lane.items : []) {
    const block = T.block(item.module), [phase, micro] = item.part, last = out[out.length - 1];
    if (last && last.phase === phase && last.micro === micro && last.block === block) continue;
    if (last) last.to = Math.max(last.from, item.start);
    out.push({ phase, micro, block, from: out.length ? item.start : 0, to: view.step });
  }
  for (const section of out) Object.assign(section, { time: section.to - section.from, exposed: 0, peak: 0 });
  /* The seconds that a collective is charged with, on the idle parts beside it. */
  for (const slice of view.exposed) {
    const parts = view.idle(slice.start, slice.end), sum = parts.reduce((s, [from, to]) => s + to - from, 0);
    for (const [from, to] of parts) {
      const section = T.sectionAt(out, (from + to) / 2);
      if (section && sum > 0) section.exposed += slice.exposed * (to - from) / sum;
    }
  }
  const m = view.memory;
  for (const section of out) {
    const begin = view.eventsAt(section.from), end = view.eventsAt(section.to);
    for (let n = begin; n <= end; n++) section.peak = Math.max(section.peak, m.total[n]);
  }
  const top = T.sectionAt(out, m.peak.time_s);
  if (top) top.peak = Math.max(top.peak, m.peak.allocated_bytes);
  return out;
};
T.sectionAt = function (sections, t) {
  let low = 0, high = sections.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sections[middle].to > t) high = middle;
    else low = middle + 1;
  }
  return sections[Math.min(low, sections.length - 1)];
};

/* A longest common subsequence of two short lists: [[a or null, b or null], ...] */
T.align = function (a, b, same) {
  const n = a.length, m = b.length, out = [];
  if (n * m > 4e6) { /* too long for a table: in order of their places */
    for (let i = 0; i < Math.max(n, m); i++) out.push(i < n && i < m && same(a[i], b[i]) ? [a[i], b[i]] : [a[i] || null, b[i] || null]);
    return out.flatMap(([x, y]) => (x && y && !same(x, y) ? [[x, null], [null, y]] : [[x, y]]));
  }
  const length = new Uint16Array((n + 1) * (m + 1));
  for (let i = n - 1; i >= 0; i--) {
    for (let k = m - 1; k >= 0; k--) {
      length[i * (m + 1) + k] = same(a[i], b[k]) ? 1 + length[(i + 1) * (m + 1) + k + 1] : Math.max(length[(i + 1) * (m + 1) + k], length[i * (m + 1) + k + 1]);
    }
  }
  let i = 0, k = 0;
  while (i < n && k < m) {
    if (same(a[i], b[k])) out.push([a[i++], b[k++]]);
    else if (length[(i + 1) * (m + 1) + k] >= length[i * (m + 1) + k + 1]) out.push([a[i++], null]);
    else out.push([null, b[k++]]);
  }
  while (i < n) out.push([a[i++], null]);
  while (k < m) out.push([null, b[k++]]);
  return out;
};

T.alignSections = function (a, b) {
  const runs = (list) => {
    const out = [];
    for (const section of list) {
      const last = out[out.length - 1];
      if (last && last[0].phase === section.phase && last[0].micro === section.micro) last.push(section);
      else out.push([section]);
    }
    return out;
  };
  const phases = T.align(runs(a), runs(b), (x, y) => x[0].phase === y[0].phase && x[0].micro === y[0].micro);
  return phases.flatMap(([x, y]) => T.align(x || [], y || [], (p, q) => p.block === q.block));
};

T.PairPage = class {
  constructor(strategies, changed) {
    Object.assign(this, { strategies, changed, together: true });
    const select = (name) => T.el('select', { 'aria-label': name, onchange: () => this.choose(Number(this.selects[0].value), Number(this.selects[1].value)) }, strategies.map((s) => T.el('option', { value: s.number }, s.name)));
    this.selects = [select('the first strategy'), select('the second strategy')];
    const button = (text, title, f) => T.el('button', { title, onclick: f }, text);
    this.bar = T.el('div.bar', {}, T.el('label', {}, 'A', this.selects[0]), button('\u21c4', 'the other way round (x)', () => this.choose(this.b, this.a)), T.el('label', {}, 'B', this.selects[1]),
      button('+', 'closer (w)', () => this.axis.zoom(0.5)), button('\u2212', 'farther (s)', () => this.axis.zoom(2)), button('all', 'the whole step (0)', () => this.axis.set(0, this.axis.whole)),
      T.el('label', {}, T.el('input', { type: 'checkbox', checked: true, onchange: (e) => { this.together = e.target.checked; this.list(); } }), 'blocks together'));
    this.body = T.el('div');
    this.node = T.el('section', {}, this.bar, this.body);
  }

  choose(a, b) {
    Object.assign(this, { a, b });
    this.selects[0].value = String(a);
    this.selects[1].value = String(b);
    this.views = [T.view(a), T.view(b)];
    this.build();
    this.changed(a, b);
  }

  /* Places of the aligned axis: each pair is as wide as the longer of the two. */
  place() {
    let x = 0;
    this.pairs = T.alignSections(...this.views.map(T.sections)).map(([a, b]) => {
      const pair = { a, b, one: a || b, x, wide: Math.max(a ? a.time : 0, b ? b.time : 0) };
      x += pair.wide;
      return pair;
    });
    this.whole = x || 1;
  }

  build() {
    this.place();
    for (const plot of [this.top, this.low]) if (plot && plot.graph) plot.graph.destroy(); /* it listens to the window */
    const [va, vb] = this.views, colours = this.colours();
    this.axis = new T.Axis(this.whole, this.whole * 1e-5);
    this.top = this.plot(250, 'memory of both');
    this.low = this.plot(130, 'the difference');
    this.tableHolder = T.el('div');
    const row = (name, kind, a, b) => ({ name, kind, a, b });
    const rows = [row('step', 's', va.totals.step_s, vb.totals.step_s), row('compute', 's', va.totals.compute_s, vb.totals.compute_s), row('communication', 's', va.totals.communication_s, vb.totals.communication_s), row('exposed', 's', va.totals.exposed_s, vb.totals.exposed_s),
      row('peak allocated', 'bytes', va.memory.peak.allocated_bytes, vb.memory.peak.allocated_bytes), row('peak reserved', 'bytes', va.memory.peak.reserved_bytes, vb.memory.peak.reserved_bytes), row('peak in use', 'bytes', va.memory.peak.in_use_bytes, vb.memory.peak.in_use_bytes)];
    const show = (kind, v) => (kind === 's' ? T.time(v) : T.bytes(v));
    T.clear(this.body, T.el('div.scroll', {}, T.el('table', {}, T.el('thead', {}, T.el('tr', {}, T.el('th.text', {}, 'of the steady step'), T.el('th', { title: va.strategy }, 'A: ' + T.cut(va.strategy, 26)), T.el('th', { title: vb.strategy }, 'B: ' + T.cut(vb.strategy, 26)), T.el('th', {}, 'B \u2212 A'), T.el('th', {}, 'B / A'))),
      T.el('tbody', {}, rows.map((r) => T.el('tr', {}, T.el('td.text', {}, r.name), T.el('td', {}, show(r.kind, r.a)), T.el('td', {}, show(r.kind, r.b)), T.el('td', {}, T.signed(show(r.kind, r.b - r.a), r.b - r.a)), T.el('td', {}, r.a > 0 ? T.fixed(r.b / r.a, 3) : '-')))))),
    T.el('h2', {}, 'Memory, aligned by module and phase'), this.top.node,
    T.el('div.legend', {}, T.el('span', {}, T.swatch(colours[0], 'solid'), 'A: ' + va.strategy), T.el('span', {}, T.swatch(colours[1], 'solid'), 'B: ' + vb.strategy)),
    T.el('div.axisname', {}, 'B \u2212 A: more memory above, less below'), this.low.node,
    T.el('p.note', {}, 'Each visit of a module is as wide as the slower of the two takes for it; what only one of them does is shaded.'),
    T.el('h2', {}, 'Where they differ'), this.tableHolder);
    this.draw();
    for (const plot of [this.top, this.low]) this.axis.attach({ node: plot.node, area: () => plot.graph.getArea(), draw: () => plot === this.top && this.draw(), drawCursor: () => this.cursor(plot) }, { move: (e, t) => this.tell(e, t), leave: () => T.tip.hide() });
    this.list();
  }

  colours() {
    return T.isDark() ? ['#56B4E9', '#E69F00'] : ['#0072B2', '#D55E00'];
  }

  plot(height, name) {
    const node = T.el('div.plot', { style: { height: height + 'px' }, role: 'img', 'aria-label': name, tabindex: 0 }), line = T.el('div.cursor', { hidden: true });
    return { node, line, graph: null };
  }

  pairAt(x) {
    let low = 0, high = this.pairs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.pairs[middle].x + this.pairs[middle].wide > x) high = middle;
      else low = middle + 1;
    }
    return this.pairs[Math.min(low, this.pairs.length - 1)];
  }

  /* The fullest of a view while the aligned axis goes from x0 to x1 inside of a pair. */
  level(which, pair, x0, x1) {
    const view = this.views[which], section = which ? pair.b : pair.a, m = view.memory;
    if (!section) return null;
    const t = (x) => section.from + (pair.wide > 0 ? (x - pair.x) / pair.wide : 0) * section.time;
    const from = view.eventsAt(t(x0)), to = view.eventsAt(t(x1));
    let most = m.total[from];
    for (let n = from + 1; n <= to; n++) most = Math.max(most, m.total[n]);
    if (m.peak.events >= from && m.peak.events <= to) most = Math.max(most, m.peak.allocated_bytes);
    return most;
  }

  rows() {
    const { axis } = this, pixels = 900, bin = (axis.to - axis.from) / pixels, out = [];
    let before = [this.views[0].memory.total[0], this.views[1].memory.total[0]];
    for (const pair of this.pairs) {
      if (pair.x > axis.to) break;
      if (pair.x + pair.wide < axis.from) {
        before = before.map((b, w) => this.lastOf(w, pair, b));
        continue;
      }
      const from = Math.max(pair.x, axis.from), to = Math.min(pair.x + pair.wide, axis.to), n = Math.max(1, Math.round((to - from) / bin));
      for (let i = 0; i < n; i++) {
        const x0 = from + (to - from) * i / n, x1 = from + (to - from) * (i + 1) / n;
        const levels = [0, 1].map((w) => this.level(w, pair, x0, x1) ?? before[w]);
        out.push([x0, ...levels]);
      }
      before = before.map((b, w) => this.lastOf(w, pair, b));
    }
    if (!out.length) out.push([axis.from, ...before]);
    out.push([axis.to, out[out.length - 1][1], out[out.length - 1][2]]);
    return out;
  }

  lastOf(which, pair, before) {
    const section = which ? pair.b : pair.a, view = this.views[which];
    return section ? view.memory.total[view.eventsAt(section.to)] : before;
  }

  draw() {
    const rows = this.rows(), window = [this.axis.from, this.axis.to], colours = this.colours();
    const high = Math.max(...this.views.map((v) => v.memory.peak.allocated_bytes)) * 1.12;
    const apart = rows.map(([x, a, b]) => [x, b - a]), most = Math.max(...apart.map((r) => Math.abs(r[1])), 1) * 1.15;
    this.most = most;
    const set = (plot, file, range, options) => {
      if (plot.graph) {
        plot.graph.updateOptions({ file, dateWindow: window, valueRange: range });
        return;
      }
      plot.graph = new Dygraph(plot.node, file, {
        legend: 'never', stepPlot: true, strokeWidth: 1.5, interactionModel: {}, highlightCircleSize: 0, gridLineColor: T.css('--line'), axisLineColor: T.css('--soft'), rightGap: 8, dateWindow: window, valueRange: range,
        axes: { x: { ticker: () => [], drawGrid: false }, y: { axisLabelWidth: innerWidth < 640 ? 62 : 84, ticker: () => (plot === this.low ? T.byteTicks(-this.most, this.most, 5) : T.byteTicks(...range, 6)) } },
        plugins: [{ toString: () => 'marks', activate: () => ({ willDrawChart: (e) => this.shade(e, plot) }) }], ...options,
      });
      plot.node.append(plot.line);
    };
    set(this.top, rows, [0, high], { labels: ['x', 'A', 'B'], colors: colours });
    set(this.low, apart, [-most, most], { labels: ['x', 'difference'], colors: [T.css('--fg')], fillGraph: true, fillAlpha: 0.25 });
  }

  /* Phases, and what only one of them does. */
  shade(e, plot) {
    const { drawingContext: context, dygraph } = e, area = dygraph.getArea(), to = (x) => dygraph.toDomXCoord(x);
    context.save();
    context.beginPath();
    context.rect(area.x, area.y, area.w, area.h);
    context.clip();
    context.font = '12px system-ui, sans-serif';
    let begin = 0, number = 0;
    const phases = [];
    this.pairs.forEach((pair, i) => {
      const next = this.pairs[i + 1], label = pair.one.phase + (this.views[0].parts.some((p) => p[1] > 0) ? ' ' + pair.one.micro : '');
      if (!pair.a || !pair.b) {
        context.fillStyle = pair.a ? this.colours()[0] : this.colours()[1];
        context.globalAlpha = 0.22;
        context.fillRect(to(pair.x), area.y, Math.max(1, to(pair.x + pair.wide) - to(pair.x)), area.h);
        context.globalAlpha = 1;
      }
      if (next && next.one.phase === pair.one.phase && next.one.micro === pair.one.micro) return;
      const end = pair.x + pair.wide;
      if (number++ % 2 === 0) {
        context.fillStyle = T.css('--shade');
        context.fillRect(to(begin), area.y, to(end) - to(begin), area.h);
      }
      phases.push([label, begin, end]);
      begin = end;
    });
    if (plot === this.top) T.phaseNames(context, { phases }, to, area, area.y + 10);
    context.restore();
  }

  cursor(plot) {
    const { axis } = this, hidden = axis.cursor === null || axis.cursor < axis.from || axis.cursor > axis.to;
    plot.line.hidden = hidden;
    if (!hidden) plot.line.style.left = plot.graph.toDomXCoord(axis.cursor) + 'px';
  }

  tell(event, x) {
    const pair = this.pairAt(x), width = this.whole / 1e5;
    if (!pair) return;
    const levels = [0, 1].map((w) => this.level(w, pair, x, x + width));
    const line = (name, section, level) => T.el('div', {}, `${name}: ${section ? `${T.time(section.time)}, exposed ${T.time(section.exposed)}, ${T.bytes(level)}` : 'does not come here'}`);
    T.tip.show(event, T.el('b', {}, `${pair.one.phase}, ${pair.one.block}`), line('A', pair.a, levels[0]), line('B', pair.b, levels[1]),
      pair.a && pair.b ? T.el('div', {}, `B \u2212 A: ${T.signed(T.time(pair.b.time - pair.a.time), pair.b.time - pair.a.time)}, ${T.signed(T.bytes(levels[1] - levels[0]), levels[1] - levels[0])}`) : '');
  }

  list() {
    const groups = new Map(), numbered = !this.together && this.views.some((v) => v.parts.some((p) => p[1] > 0));
    for (const pair of this.pairs) {
      const block = this.together ? pair.one.block.replace(/(^|\.)\d+(?=\.|$)/g, '$1*') : pair.one.block, key = pair.one.phase + '\n' + block + (this.together ? '' : '\n' + pair.x);
      const row = groups.get(key) || { phase: pair.one.phase + (numbered ? ' ' + pair.one.micro : ''), block, x: pair.x, to: pair.x, at: 0, bt: 0, ax: 0, bx: 0, ap: null, bp: null };
      row.to = pair.x + pair.wide;
      if (pair.a) { row.at += pair.a.time; row.ax += pair.a.exposed; row.ap = Math.max(row.ap || 0, pair.a.peak); }
      if (pair.b) { row.bt += pair.b.time; row.bx += pair.b.exposed; row.bp = Math.max(row.bp || 0, pair.b.peak); }
      groups.set(key, row);
    }
    const rows = [...groups.values()];
    for (const row of rows) Object.assign(row, { dt: row.bt - row.at, dx: row.bx - row.ax, dp: row.ap === null || row.bp === null ? null : row.bp - row.ap, size: Math.abs(row.bt - row.at) });
    const column = (key, head, kind) => ({ key, head, kind, best: 'high' });
    const table = new T.Table({ rows, sort: 'size', down: true, pick: (row) => { this.axis.show(row.x, row.to); this.top.node.scrollIntoView({ block: 'nearest' }); },
      columns: [{ key: 'phase', head: 'phase', kind: 'text' }, { key: 'block', head: 'module', kind: 'text' }, column('at', 'A', 's'), column('bt', 'B', 's'), column('dt', 'B \u2212 A', 's'), column('ax', 'A exposed', 's'), column('bx', 'B exposed', 's'), column('dx', 'B \u2212 A exposed', 's'), column('ap', 'A peak', 'bytes'), column('bp', 'B peak', 'bytes'), column('dp', 'B \u2212 A peak', 'bytes')] });
    table.chosenList = rows;
    T.clear(this.tableHolder, table.node);
  }

  redraw() {
    if (this.views) this.build();
  }

  key(key) {
    const { axis } = this;
    const keys = { w: () => axis.zoom(0.6), s: () => axis.zoom(1 / 0.6), a: () => axis.move(-0.25), d: () => axis.move(0.25), ArrowLeft: () => axis.move(-0.25), ArrowRight: () => axis.move(0.25), 0: () => axis.set(0, axis.whole), x: () => this.choose(this.b, this.a) };
    if (!keys[key]) return false;
    keys[key]();
    return true;
  }
};
