/* scatter.js: points on two axes with names beside them, a front, a limit, lines; drawn by dygraphs. */
T.Scatter = class {
  /* spec: {x, y: {head, kind, log?}, points: [{x, y, name, style: 'good'|'changed'|'retries'|'bad'|'soft', front?, row?}],
   * limit?: {x, name}, lines?: [{name, points: [[x, y]], dash?}], pick?(row), height?, steps?: front as steps} */
  constructor(spec) {
    this.spec = spec;
    this.plot = T.el('div.plot', { style: { height: (spec.height || 380) + 'px' } });
    this.node = T.el('figure', { style: { margin: '8px 0' } }, T.el('div.axisname', {}, T.head(spec.y) + (this.log('y') ? ' (logarithmic)' : '')), this.plot,
      T.el('div.axisname', { style: { textAlign: 'right' } }, T.head(spec.x) + (this.log('x') ? ' (logarithmic)' : '')), this.key = T.el('div'));
    this.shown = null;
    this.marked = null;
    this.box = null;
  }

  legend() {
    const has = (style) => this.spec.points.some((p) => p.style === style);
    const names = this.spec.names || {};
    return T.el('div.legend', {}, ['good', 'changed', 'retries', 'soft', 'bad'].filter(has).map((style) => T.el('span', {}, T.swatch(style === 'changed' ? `radial-gradient(${T.css('--bg')} 35%, ${this.colour(style)} 40%)` : this.colour(style)), names[style] || style)),
      this.spec.points.some((p) => p.front) ? T.el('span', {}, T.swatch('var(--accent)', 'solid'), 'front: no other is as fast and as small') : null,
      this.spec.limit ? T.el('span', {}, T.swatch('var(--bad)', 'dashed'), this.spec.limit.name) : null,
      (this.spec.lines || []).filter((l) => l.name).map((l) => T.el('span', {}, T.swatch('var(--soft)', l.dash && l.dash.length ? 'dashed' : 'solid'), l.name)));
  }

  colour(style) {
    return style === 'good' || style === 'changed' ? (T.isDark() ? '#56B4E9' : '#0072B2') : style === 'bad' ? '#D55E00' : style === 'retries' ? '#E69F00' : '#8b98a5';
  }

  log(axis) {
    const given = this.spec[axis].log;
    if (given !== undefined) return given;
    const values = this.spec.points.map((p) => p[axis]);
    return Math.min(...values) > 0 && Math.max(...values) > 4 * Math.min(...values);
  }

  range(axis, room) {
    const extra = (this.spec.lines || []).filter((l) => l.fits).flatMap((l) => l.points.map((p) => p[axis === 'x' ? 0 : 1]));
    const values = this.spec.points.map((p) => p[axis]).concat(extra);
    let low = Math.min(...values), high = Math.max(...values);
    const limit = axis === 'x' && this.spec.limit ? this.spec.limit.x : null;
    if (limit && limit > high && limit < high + 2 * (high - low || high * 0.2)) high = limit;
    if (limit && limit < low && limit > low / 3) low = limit;
    if (this.log(axis)) {
      const factor = (high / low) ** room;
      return [low / factor, high * factor];
    }
    const margin = room * (high - low) || 0.1 * Math.abs(high) || 1;
    return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
  }

  draw() {
    const { spec } = this;
    T.clear(this.key, this.legend()); /* in the colours of the theme */
    if (!spec.points.length) {
      T.clear(this.plot, T.el('p.note', {}, 'Nothing to draw: no strategy has figures.'));
      return;
    }
    const window = this.box || [this.range('x', 0.06), this.range('y', 0.08)];
    const points = [...spec.points].sort((a, b) => a.x - b.x);
    const axis = (of, range) => ({
      logscale: this.log(of), drawGrid: true, axisLabelWidth: of === 'y' ? 62 : 70, independentTicks: true,
      ticker: () => (this.log(of) ? T.logTicks(...range, T.units[spec[of].kind]?.[1] || 1) : T.ticks(...range, Math.max(3, this.plot.clientWidth / (of === 'x' ? 110 : 140)), T.units[spec[of].kind]?.[1] || 1)),
    });
    this.window = window;
    if (this.graph) this.graph.destroy();
    this.graph = new Dygraph(this.plot, points.length > 1 ? points.map((p) => [p.x, p.y]) : [[points[0].x, points[0].y], [points[0].x * 1.0001 + 1e-12, NaN]], {
      labels: ['x', 'y'], legend: 'never', strokeWidth: 0, drawPoints: false, dateWindow: window[0], valueRange: window[1], logscale: this.log('y'),
      axes: { x: axis('x', window[0]), y: axis('y', window[1]) }, gridLineColor: T.css('--line'), axisLineColor: T.css('--soft'), interactionModel: {},
      underlayCallback: (context, area) => this.paint(context, area), labelsKMB: false, highlightCircleSize: 0, rightGap: 12,
    });
    this.listen();
  }

  /* Where a point is drawn, and back; dygraphs' own conversion knows no logarithmic x. */
  toDom(p, area) {
    const place = (v, [low, high], log) => (log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low));
    return [area.x + area.w * place(p.x, this.window[0], this.log('x')), area.y + area.h * (1 - place(p.y, this.window[1], this.log('y')))];
  }

  toData([x, y]) {
    const area = this.graph.getArea(), value = (place, [low, high], log) => (log ? low * (high / low) ** place : low + place * (high - low));
    const clamp = (v) => Math.min(1, Math.max(0, v));
    return [value(clamp((x - area.x) / area.w), this.window[0], this.log('x')), value(clamp(1 - (y - area.y) / area.h), this.window[1], this.log('y'))];
  }

  paint(context, area) {
    const { spec } = this, to = (p) => this.toDom(p, area);
    context.save();
    context.beginPath();
    context.rect(area.x, area.y, area.w, area.h);
    context.clip();
    context.font = '12px system-ui, sans-serif';
    const stroke = (points, colour, dash, width) => {
      context.beginPath();
      points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
      context.strokeStyle = colour;
      context.lineWidth = width || 1.5;
      context.setLineDash(dash || []);
      context.stroke();
      context.setLineDash([]);
    };
    for (const line of spec.lines || []) stroke(line.points.map(([x, y]) => to({ x, y })), line.colour || T.css('--soft'), line.dash, line.width);
    if (spec.limit) {
      const x = to({ x: spec.limit.x, y: this.window[1][0] })[0];
      stroke([[x, area.y], [x, area.y + area.h]], T.css('--bad'), [6, 4]);
    }
    const front = spec.points.filter((p) => p.front).sort((a, b) => a.x - b.x), steps = [];
    front.forEach((p, i) => {
      const [x, y] = to(p);
      if (i) steps.push([x, steps[steps.length - 1][1]]);
      steps.push([x, y]);
    });
    stroke(steps, T.css('--accent'), [], 2);
    this.steps = steps;
    this.shown = spec.points.map((p) => ({ p, at: to(p) }));
    for (const { p, at: [x, y] } of this.shown) {
      context.beginPath();
      if (p.style === 'bad') { /* another shape, too: a cross */
        context.moveTo(x - 4, y - 4); context.lineTo(x + 4, y + 4); context.moveTo(x - 4, y + 4); context.lineTo(x + 4, y - 4);
        context.strokeStyle = this.colour(p.style);
        context.lineWidth = 2;
        context.stroke();
      } else if (p.style === 'retries') { /* and a triangle */
        context.moveTo(x - 5, y + 4); context.lineTo(x + 5, y + 4); context.lineTo(x, y - 5);
        context.fillStyle = this.colour(p.style);
        context.fill();
      } else {
        context.arc(x, y, p.best ? 6 : 4.5, 0, 7);
        context.fillStyle = p.style === 'changed' ? T.css('--bg') : this.colour(p.style);
        context.fill();
        if (p.style === 'changed') { /* a ring */
          context.strokeStyle = this.colour(p.style);
          context.lineWidth = 2;
          context.stroke();
        }
      }
      if (p.best || p.row === this.marked) {
        context.beginPath();
        context.arc(x, y, 9, 0, 7);
        context.strokeStyle = T.css('--fg');
        context.lineWidth = 1.5;
        context.stroke();
      }
    }
    this.names(context, area);
    context.restore();
  }

  /* Points that coincide share one label: [{p, at, text}], those of the front and the best first. */
  labels(area) {
    const rank = ({ p }) => (p.best ? 2 : p.front ? 1 : 0), groups = [];
    for (const one of [...this.shown].sort((a, b) => rank(b) - rank(a))) {
      const group = groups.find((g) => Math.hypot(g.at[0] - one.at[0], g.at[1] - one.at[1]) < 3);
      if (group) group.names.push(one.p.name);
      else groups.push({ ...one, names: [one.p.name] });
    }
    const most = area.w < 500 ? 22 : 34;
    return groups.map((g) => {
      const all = g.names.join(' / '), more = ` and ${g.names.length - 1} more`;
      return { ...g, text: g.names.length === 1 || all.length <= most ? T.cut(all, most) : T.cut(g.names[0], most - more.length) + more };
    });
  }

  /* Each label goes where it covers no point, no text and no line; if there is no such place, over a line. */
  names(context, area) {
    const taken = this.shown.map(({ at: [x, y] }) => [x - 6, y - 6, x + 6, y + 6]), lines = [];
    this.steps.forEach(([x, y], i) => {
      const before = this.steps[i - 1];
      if (before) lines.push([Math.min(x, before[0]) - 1, Math.min(y, before[1]) - 1, Math.max(x, before[0]) + 1, Math.max(y, before[1]) + 1]);
    });
    if (this.spec.limit) {
      const x = this.toDom({ x: this.spec.limit.x, y: this.window[1][0] }, area)[0];
      lines.push([x - 2, area.y, x + 2, area.y + area.h]);
    }
    context.fillStyle = T.css('--fg');
    context.textBaseline = 'middle';
    if (this.spec.quiet) return;
    this.labelled = [];
    for (const { at: [x, y], text } of this.labels(area)) {
      const w = context.measureText(text).width, places = [];
      for (const dy of [0, -13, 13]) places.push([10, dy], [-10 - w, dy]);
      places.push([-w / 2, -16], [-w / 2, 16]);
      for (const dy of [-28, 28, -44, 44, -60, 60]) places.push([16, dy], [-16 - w, dy]); /* with a line to the point */
      const box = ([dx, dy]) => [x + dx, y + dy - 7, x + dx + w, y + dy + 7];
      const free = (others) => ([left, top, right, bottom]) => left >= area.x && right <= area.x + area.w && top >= area.y && bottom <= area.y + area.h &&
        !others.some((t) => t[0] < right && t[2] > left && t[1] < bottom && t[3] > top);
      const place = places.find((at) => free([...taken, ...lines])(box(at))) || places.find((at) => free(taken)(box(at)));
      if (!place) continue;
      const [dx, dy] = place;
      if (Math.abs(dy) > 16) {
        context.strokeStyle = T.css('--soft');
        context.lineWidth = 0.7;
        context.beginPath();
        context.moveTo(x, y);
        context.lineTo(dx > 0 ? x + dx - 2 : x + dx + w + 2, y + dy);
        context.stroke();
      }
      context.fillText(text, x + dx, y + dy);
      taken.push(box(place));
      this.labelled.push(text);
    }
  }

  near(event) {
    const box = this.plot.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = null, least = 20 * 20;
    for (const one of this.shown || []) {
      const d = (one.at[0] - x) ** 2 + (one.at[1] - y) ** 2;
      if (d < least) [best, least] = [one.p, d];
    }
    return best;
  }

  /* The rectangle that was drawn becomes the picture; two clicks show all again. */
  listen() {
    if (this.listens) return;
    this.listens = true;
    const band = T.el('div.band', { hidden: true });
    let from = null;
    const place = (event) => {
      const box = this.plot.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const { spec } = this;
    this.plot.addEventListener('pointermove', (event) => {
      const p = this.near(event);
      this.plot.style.cursor = p && spec.pick ? 'pointer' : 'crosshair';
      if (p && !from) {
        T.tip.show(event, T.el('b', {}, p.name), ...[spec.y, spec.x].map((a) => T.el('div', {}, `${T.head(a)}: ${T.cell(a.kind, p[a === spec.x ? 'x' : 'y'])}`)), ...(p.more || []).map((m) => T.el('div', {}, m)));
      } else {
        T.tip.hide();
      }
      if (!from) return;
      const [x, y] = place(event);
      if (!band.parentNode) this.plot.append(band);
      band.hidden = Math.abs(x - from[0]) < 6;
      Object.assign(band.style, { left: Math.min(x, from[0]) + 'px', width: Math.abs(x - from[0]) + 'px', top: Math.min(y, from[1]) + 'px', height: Math.abs(y - from[1]) + 'px', bottom: 'auto' });
    });
    this.plot.addEventListener('pointerleave', () => { T.tip.hide(); });
    this.plot.addEventListener('pointerdown', (event) => { from = place(event); this.plot.setPointerCapture(event.pointerId); });
    this.plot.addEventListener('pointerup', (event) => {
      const to = place(event), start = from;
      from = null;
      band.hidden = true;
      if (!start) return;
      if (Math.abs(to[0] - start[0]) < 6 || Math.abs(to[1] - start[1]) < 6) {
        const p = this.near(event);
        if (p && spec.pick) spec.pick(p.row);
        return;
      }
      const sorted = (a, b) => [Math.min(a, b), Math.max(a, b)];
      const a = this.toData(start), b = this.toData(to);
      this.box = [sorted(a[0], b[0]), sorted(a[1], b[1])];
      this.draw();
    });
    this.plot.addEventListener('dblclick', () => { this.box = null; this.draw(); });
  }

  mark(row) {
    this.marked = row;
    if (this.graph) this.graph.updateOptions({});
  }
};
