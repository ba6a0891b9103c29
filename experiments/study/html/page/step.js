/* step.js: the step of a strategy: memory above its streams, and what is alive at the cursor. */
T.StepPage = class {
  /* strategies: [{number, name}]; changed(number) tells the address */
  constructor(strategies, changed) {
    Object.assign(this, { strategies, changed });
    this.select = T.el('select', { 'aria-label': 'strategy', onchange: () => this.choose(Number(this.select.value)) }, strategies.map((s) => T.el('option', { value: s.number }, s.name)));
    this.search = T.el('input', { type: 'search', size: 22, placeholder: 'find a kernel or module', 'aria-label': 'find', oninput: () => this.find(), onkeydown: (e) => { if (e.key === 'Enter') this.next(e.shiftKey ? -1 : 1); } });
    this.phase = T.el('select', { 'aria-label': 'go to a phase', onchange: () => this.goPhase() });
    this.hits = T.el('span.soft');
    const button = (text, title, f) => T.el('button', { title, onclick: f }, text);
    this.bar = T.el('div.bar', {}, T.el('label', {}, 'strategy', this.select), this.phase,
      button('+', 'closer (w)', () => this.axis.zoom(0.5)), button('\u2212', 'farther (s)', () => this.axis.zoom(2)), button('all', 'the whole step (0)', () => this.axis.set(0, this.axis.whole)),
      button('peak', 'to the peak (p)', () => this.goPeak(true)), button('next exposed', 'the next exposed collective (n)', () => this.nextExposed()), button('fit height', 'the height of what is seen (y)', () => this.fit()), this.search, this.hits);
    this.body = T.el('div');
    this.node = T.el('section', {}, this.bar, this.body);
  }

  choose(number) {
    const view = T.view(number);
    this.number = number;
    this.select.value = String(number);
    this.view = view;
    this.axis = new T.Axis(view.step, Math.max(view.quantum * 20, view.step * 1e-7));
    this.build();
    this.changed(number);
  }

  build() {
    const { view, axis } = this, narrow = innerWidth < 640;
    if (this.memory && this.memory.graph) this.memory.graph.destroy(); /* it listens to the window */
    this.memory = new T.MemoryChart(view, axis, narrow ? 62 : 112);
    this.streams = new T.Streams(view, axis, () => this.memory.area());
    this.panel = T.el('div.alive');
    T.clear(this.phase, T.el('option', { value: '' }, 'go to\u2026'), view.phases.map(([name], i) => T.el('option', { value: i }, name)));
    const totals = view.totals, share = totals.step_s > 0 ? 100 * totals.exposed_s / totals.step_s : 0, peak = view.memory.peak;
    T.clear(this.body, T.el('p.verdict', {}, `step ${T.time(totals.step_s)}, compute ${T.time(totals.compute_s)}, exposed ${T.time(totals.exposed_s)} (${T.fixed(share, 1)} %); peak `, T.el('b', {}, T.bytes(peak.allocated_bytes)),
      ` allocated, made by ${[peak.operation, peak.module.startsWith('(') && peak.module !== '(root)' ? '' : peak.module].filter(Boolean).join(' of ') || peak.module} in ${peak.phase}; ${T.bytes(peak.reserved_bytes)} reserved`),
    T.el('div.two', {}, T.el('div', {}, T.el('h2', {}, 'Memory'), this.memory.node, this.memory.legend(), T.el('h2', {}, 'Streams'), this.streams.node, this.streams.legend(),
      T.el('p.note.noprint', {}, 'Drag to look closer, two clicks for all, shift and drag to move, ctrl and wheel to zoom; a click holds the cursor. ? shows the keys.')), T.el('aside', {}, this.panel)));
    this.memory.draw();
    axis.attach(this.memory);
    axis.attach(this.streams, { move: (e, t, y) => this.streams.hover(e, t, y), leave: () => this.streams.leave() });
    axis.watchers.push((moved) => this.tell(moved));
    this.memory.node.tabIndex = this.streams.node.tabIndex = 0;
    this.search.value = '';
    this.find();
    axis.point(view.memory.peak.time_s, false);
    axis.now();
  }

  /* The peak itself near its moment: changes at one instant follow each other. */
  stateAt(t) {
    const { peak } = this.view.memory, pixel = (this.axis.to - this.axis.from) / Math.max(1, this.memory.area().w);
    return Math.abs(t - peak.time_s) <= 3 * pixel ? peak.events : this.view.eventsAt(t);
  }

  tell(moved) {
    const { view, axis } = this;
    if (axis.cursor === null || (moved && axis.cursor === this.told)) return;
    this.told = axis.cursor;
    const n = this.stateAt(axis.cursor), m = view.memory, alive = view.alive(n), phase = view.phaseAt(axis.cursor), atPeak = n === m.peak.events;
    const rows = [...m.occurs].reverse().map((c) => [m.categories[c], m.levels[n * m.width + c]]).filter((row) => row[1] > 0);
    const list = (head, lines) => T.el('div.scroll', {}, T.el('table', {}, T.el('thead', {}, T.el('tr', {}, head)), T.el('tbody', {}, lines)));
    T.clear(this.panel, T.el('h2', {}, `At ${T.time(axis.cursor, view.step)}${phase ? ', ' + phase[0] : ''}`),
      T.el('p.note', {}, `${T.bytes(m.total[n])} allocated${atPeak ? ': the peak' : ''}; ${T.bytes(view.reservedAt(axis.cursor))} reserved; ${T.bytes(view.inUseBetween(axis.cursor, axis.cursor))} in use${axis.pinned ? '; the cursor is held' : ''}`),
      list([T.el('th.text', {}, 'category'), T.el('th', {}, 'size')], rows.map(([name, bytes]) => T.el('tr', {}, T.el('td.text', {}, T.swatch(T.categoryColour(name)), ' ' + name), T.el('td', {}, T.bytes(bytes))))),
      T.el('h2', {}, `Alive: the largest ${Math.min(20, alive.length)} of ${alive.length}`),
      list([T.el('th.text', {}, 'module, what for'), T.el('th', {}, 'size')], alive.slice(0, 20).map((one) => T.el('tr', {}, T.el('td.text', {}, T.swatch(T.categoryColour(one.category)), ` ${one.module}`, T.el('span.soft', {}, `${one.op ? ', ' + one.op : ''}${one.n > 1 ? ' \u00d7 ' + one.n : ''}`)), T.el('td', {}, T.bytes(one.bytes))))));
  }

  goPeak(closer) {
    const at = this.view.memory.peak.time_s;
    if (closer) this.axis.set(at - this.view.step / 60, at + this.view.step / 60);
    this.axis.point(at, true);
  }

  goPhase() {
    const phase = this.view.phases[Number(this.phase.value)];
    if (this.phase.value !== '' && phase) this.axis.show(phase[1], phase[2]);
    this.phase.value = '';
  }

  fit() {
    this.memory.near = !this.memory.near;
    this.axis.redraw(true);
  }

  nextExposed() {
    const sorted = this.view.exposed.filter((slice) => slice.exposed > 1e-6).sort((a, b) => a.start - b.start);
    if (!sorted.length) return;
    const now = this.lastExposed ? this.lastExposed.start : -Infinity;
    const next = sorted.find((slice) => slice.start > now) || sorted[0];
    this.lastExposed = next;
    this.axis.show(next.start, next.end);
    this.axis.point(next.start, true);
  }

  find() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (slice) => words.every((word) => (slice.kind.op + ' ' + slice.module + ' ' + slice.part[0]).toLowerCase().includes(word));
    this.streams.matches = words.length ? matches : null;
    this.list = words.length ? this.view.slices.filter(matches) : [];
    this.index = -1;
    this.hits.textContent = words.length ? `${this.list.length} found` + (this.list.length ? '; Enter goes to the next' : '') : '';
    this.axis.redraw(true);
  }

  next(by) {
    if (!this.list.length) return;
    this.index = (this.index + by + this.list.length) % this.list.length;
    const slice = this.list[this.index];
    this.streams.hovered = slice;
    this.axis.show(slice.start, slice.end);
    this.axis.point(slice.start, true);
    this.hits.textContent = `${this.index + 1} of ${this.list.length}`;
  }

  step(by) {
    const at = this.strategies.findIndex((s) => s.number === this.number);
    const next = this.strategies[(at + by + this.strategies.length) % this.strategies.length];
    if (next && next.number !== this.number) this.choose(next.number);
  }

  redraw() {
    if (!this.view) return;
    const { from, to, cursor, pinned } = this.axis;
    this.axis = new T.Axis(this.view.step, this.axis.least);
    this.build();
    Object.assign(this.axis, { cursor, pinned });
    this.axis.set(from, to);
  }

  key(key) {
    const { axis } = this;
    const keys = { w: () => axis.zoom(0.6, this.around()), s: () => axis.zoom(1 / 0.6, this.around()), a: () => axis.move(-0.25), d: () => axis.move(0.25), ArrowLeft: () => axis.move(-0.25), ArrowRight: () => axis.move(0.25), 0: () => axis.set(0, axis.whole), p: () => this.goPeak(true), n: () => this.nextExposed(), y: () => this.fit(), j: () => this.step(1), k: () => this.step(-1), '/': () => this.search.focus() };
    if (!keys[key]) return false;
    keys[key]();
    return true;
  }

  around() {
    const { cursor, from, to } = this.axis;
    return cursor !== null && cursor >= from && cursor <= to ? cursor : undefined;
  }
};
