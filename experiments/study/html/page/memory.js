/* memory.js: the memory of a step by category, what is reserved and in use, phases, the limit, the peak. */
T.MemoryChart = class {
  constructor(view, axis, left) {
    Object.assign(this, { view, axis, left, near: false });
    this.node = T.el('div.plot.memory', { style: { height: '320px' }, role: 'img', 'aria-label': `memory of ${view.strategy} over the step; peak ${T.bytes(view.memory.peak.allocated_bytes)}` });
    this.line = T.el('div.cursor', { hidden: true });
    const m = view.memory;
    this.stack = m.occurs;
    this.most = Math.max(m.peak.allocated_bytes, ...m.reserved.bytes, 1);
    this.hasLimit = view.limit && view.limit < 1.4 * this.most;
    this.top = 1.1 * Math.max(this.most, this.hasLimit ? view.limit : 0);
  }

  legend() {
    const { view } = this, lines = [['reserved: what the allocator holds', T.isDark() ? '#ffffff' : '#000000', 'dashed'], ['in use on the device', T.isDark() ? '#ffffff' : '#000000', 'dotted']];
    if (view.limit) lines.push([`usable: ${T.bytes(view.limit)}` + (this.hasLimit ? '' : ', above the picture'), T.css('--bad'), 'solid']);
    return T.el('div.legend', {}, [...this.stack].reverse().map((c) => T.el('span', {}, T.swatch(T.categoryColour(view.memory.categories[c])), view.memory.categories[c])),
      lines.map(([name, colour, line]) => T.el('span', {}, T.swatch(colour, line), name)));
  }

  /* At each pixel the fullest state and the last one. */
  rows() {
    const { view, axis } = this, m = view.memory, { time } = m.events;
    const pixels = Math.max(100, Math.min(1400, this.node.clientWidth - this.left)), bin = (axis.to - axis.from) / pixels;
    const out = [];
    const put = (t, n) => {
      const row = [t], at = n * m.width;
      let sum = 0;
      for (let k = 0; k < this.stack.length; k++) row[k + 1] = sum += m.levels[at + this.stack[k]];
      out.push(row);
    };
    let i = view.eventsAt(axis.from);
    const end = view.eventsAt(axis.to);
    put(axis.from, i);
    while (i < end) {
      const begin = time[i];
      let fullest = i + 1;
      for (; i < end && time[i] < begin + bin; i++) if (m.total[i + 1] > m.total[fullest]) fullest = i + 1;
      put(begin, fullest);
      if (fullest !== i) put(Math.min(begin + bin / 2, i < end ? time[i] : axis.to), i);
    }
    put(axis.to, end);
    return out;
  }

  range(rows) {
    if (!this.near) return [0, this.top];
    let low = Infinity, high = 0;
    for (const row of rows) {
      low = Math.min(low, row[row.length - 1]);
      high = Math.max(high, row[row.length - 1]);
    }
    const room = 0.06 * (high - low) || 0.01 * high;
    return [Math.max(0, low - room), high + 2 * room];
  }

  draw() {
    const rows = this.rows(), range = this.range(rows), window = [this.axis.from, this.axis.to];
    this.last = range;
    if (this.graph) {
      this.graph.updateOptions({ file: rows, dateWindow: window, valueRange: range });
      return;
    }
    const labels = ['t', ...this.stack.map((c) => 'c' + c)];
    const colours = this.stack.map((c) => T.categoryColour(this.view.memory.categories[c]));
    this.graph = new Dygraph(this.node, rows, {
      labels, colors: colours, stepPlot: true, fillGraph: true, fillAlpha: 1, strokeWidth: 0, legend: 'never',
      dateWindow: window, valueRange: range, interactionModel: {}, highlightCircleSize: 0, gridLineColor: T.css('--line'), axisLineColor: T.css('--soft'), rightGap: 8,
      axes: { x: { ticker: () => T.timeTicks(this.axis, this.node.clientWidth), drawGrid: false, axisLabelWidth: 80 }, y: { ticker: () => T.byteTicks(...this.last, 6), axisLabelWidth: this.left, drawGrid: true } },
      plugins: [{ toString: () => 'marks', activate: () => ({ willDrawChart: (e) => this.phases(e), didDrawChart: (e) => this.marks(e) }) }],
    });
    this.node.append(this.line);
  }

  area() {
    return this.graph.getArea();
  }

  phases(e) {
    const { drawingContext: context, dygraph } = e, area = dygraph.getArea();
    context.save();
    this.view.phases.forEach(([, from, to], i) => {
      const x0 = Math.max(area.x, dygraph.toDomXCoord(from)), x1 = Math.min(area.x + area.w, dygraph.toDomXCoord(to));
      if (x1 <= x0 || i % 2) return;
      context.fillStyle = T.css('--shade');
      context.fillRect(x0, area.y, x1 - x0, area.h);
    });
    context.restore();
  }

  marks(e) {
    const { drawingContext: context, dygraph } = e, area = dygraph.getArea(), { view } = this, peak = view.memory.peak;
    context.save();
    context.beginPath();
    context.rect(area.x, area.y, area.w, area.h);
    context.clip();
    context.font = '12px system-ui, sans-serif';
    T.phaseNames(context, view, (t) => dygraph.toDomXCoord(t), area, area.y + 12);
    this.lines(context, dygraph, area);
    if (view.limit) {
      const y = dygraph.toDomYCoord(view.limit);
      context.strokeStyle = T.css('--bad');
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(area.x, y);
      context.lineTo(area.x + area.w, y);
      context.stroke();
    }
    const x = dygraph.toDomXCoord(peak.time_s), y = dygraph.toDomYCoord(peak.allocated_bytes);
    if (x >= area.x - 1 && x <= area.x + area.w + 1) {
      const text = `peak ${T.bytes(peak.allocated_bytes)}`, w = context.measureText(text).width;
      const left = x + 12 + w > area.x + area.w ? x - 12 - w : x + 8, top = Math.max(area.y + 30, y - 12);
      context.fillStyle = T.css('--bg');
      context.globalAlpha = 0.85;
      context.fillRect(left - 4, top - 9, w + 8, 18);
      context.globalAlpha = 1;
      context.fillStyle = T.css('--fg');
      context.textBaseline = 'middle';
      context.fillText(text, left, top);
      context.beginPath();
      context.arc(x, y, 4, 0, 7);
      context.fill();
      context.strokeStyle = T.css('--bg');
      context.lineWidth = 1.5;
      context.stroke();
    }
    context.restore();
  }

  /* What the allocator holds, and the most in use at each pixel. */
  lines(context, dygraph, area) {
    const { view, axis } = this, { reserved } = view.memory, toX = (t) => dygraph.toDomXCoord(t), toY = (b) => dygraph.toDomYCoord(b);
    const stroke = (dash, draw) => {
      context.beginPath();
      draw();
      context.setLineDash(dash);
      context.strokeStyle = T.isDark() ? '#ffffff' : '#000000';
      context.lineWidth = 1.5;
      context.stroke();
      context.setLineDash([]);
    };
    stroke([7, 4], () => {
      context.moveTo(area.x, toY(view.reservedAt(axis.from)));
      reserved.time.forEach((t, i) => {
        if (t <= axis.from || t >= axis.to) return;
        context.lineTo(toX(t), toY(reserved.bytes[i - 1] || 0));
        context.lineTo(toX(t), toY(reserved.bytes[i]));
      });
      context.lineTo(area.x + area.w, toY(view.reservedAt(axis.to)));
    });
    stroke([2, 2], () => {
      const scale = (axis.to - axis.from) / area.w;
      for (let x = 0; x < area.w; x++) context.lineTo(area.x + x, toY(view.inUseBetween(axis.from + x * scale, axis.from + (x + 1) * scale)));
    });
  }

  drawCursor() {
    const { axis } = this;
    if (!this.graph) return;
    const hidden = axis.cursor === null || axis.cursor < axis.from || axis.cursor > axis.to;
    this.line.hidden = hidden;
    if (!hidden) this.line.style.left = this.graph.toDomXCoord(axis.cursor) + 'px';
  }
};

T.timeTicks = function (axis, width) {
  const span = axis.to - axis.from, [factor, suffix] = span > 10 ? [1, ' s'] : span > 2e-4 ? [1e3, ' ms'] : [1e6, ' \u00b5s'];
  return T.ticks(axis.from, axis.to, Math.max(2, width / 120), factor, suffix);
};

/* Names of phases where they fit, at a height of the picture. */
T.phaseNames = function (context, view, toX, area, y) {
  context.fillStyle = T.css('--soft');
  context.textBaseline = 'middle';
  context.textAlign = 'left';
  let free = area.x;
  for (const [name, from, to] of view.phases) {
    const x0 = Math.max(area.x, toX(from)), x1 = Math.min(area.x + area.w, toX(to)), w = context.measureText(name).width;
    if (x1 - x0 < w + 6 || (x0 + x1 - w) / 2 < free) continue;
    context.fillText(name, (x0 + x1 - w) / 2, y);
    free = (x0 + x1 + w) / 2 + 4;
  }
};
