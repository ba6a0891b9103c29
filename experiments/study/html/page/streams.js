/* streams.js: what each stream does, on a canvas: the whole step, or one kernel. Exposed communication has the colour
 * of its reason, in the slice and in a lane of its own. */
T.Streams = class {
  constructor(view, axis, area) {
    Object.assign(this, { view, axis, areaOf: area, found: null, hovered: null });
    this.canvas = T.el('canvas');
    this.node = T.el('div.plot.streams', { role: 'img', 'aria-label': `streams of ${view.strategy}` }, this.canvas);
    this.line = T.el('div.cursor', { hidden: true });
    this.node.append(this.line);
    this.row = 24;
    this.top = 20;
    /* The lane of exposure: [from, to, reason, slice] */
    this.exposed = view.exposed.flatMap((slice) => view.idle(slice.start, slice.end).map(([from, to]) => ({ start: from, end: to, slice, reason: view.reason(slice) })));
    this.exposed.sort((a, b) => a.start - b.start);
    this.lanes = view.lanes.map((lane) => ({ ...lane, longest: lane.items.reduce((most, item) => Math.max(most, item.end - item.start), 0) }));
    if (this.exposed.length) this.lanes.push({ name: 'exposed', stream: -1, items: this.exposed, longest: this.exposed.reduce((most, item) => Math.max(most, item.end - item.start), 0) });
    this.height = this.top + this.lanes.length * (this.row + 4) + 26;
    this.node.style.height = this.height + 'px';
  }

  legend() {
    const { view } = this, groups = [...new Set(view.lanes.flatMap((lane) => lane.items.map((slice) => slice.kind.group)))].sort((a, b) => a - b);
    const reasons = [...new Set(view.exposed.map((slice) => view.reason(slice)))].filter((r) => r >= 0).sort();
    return T.el('div.legend', {}, groups.map((g) => T.el('span', {}, T.swatch(T.classColour(g)), T.classes[g][0])),
      reasons.map((r) => T.el('span', {}, T.swatch(T.reasonColours[r]), 'exposed: ' + view.reasons[r])));
  }

  area() {
    return this.areaOf();
  }

  laneTop(k) {
    return this.top + k * (this.row + 4);
  }

  toX(t) {
    const { x, w } = this.area();
    return x + (t - this.axis.from) / (this.axis.to - this.axis.from) * w;
  }

  /* The first item of a lane that may reach into the window. */
  first(lane) {
    const from = this.axis.from - lane.longest;
    let low = 0, high = lane.items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lane.items[middle].start < from) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  draw() {
    const { axis } = this, area = this.area(), width = this.node.clientWidth;
    if (!width) return;
    const context = T.canvas(this.canvas, width, this.height), bottom = this.laneTop(this.lanes.length);
    context.font = '11px system-ui, sans-serif';
    context.fillStyle = T.css('--bg');
    context.fillRect(0, 0, width, this.height);
    this.colours = { fg: T.css('--fg'), soft: T.css('--soft'), shade: T.css('--shade'), line: T.css('--line') };
    T.phaseNames(context, this.view, (t) => this.toX(t), area, 9);
    context.textBaseline = 'middle';
    this.lanes.forEach((lane, k) => {
      const y = this.laneTop(k);
      context.fillStyle = this.colours.shade;
      context.fillRect(area.x, y, area.w, this.row);
      context.fillStyle = this.colours.fg;
      context.textAlign = 'right';
      context.fillText(T.cut(lane.name.replace(/_/g, ' '), area.x < 90 ? 11 : 18), area.x - 8, y + this.row / 2);
    });
    context.textAlign = 'left';
    context.save();
    context.beginPath();
    context.rect(area.x, 0, area.w, this.height);
    context.clip();
    this.lanes.forEach((lane, k) => this.drawLane(context, lane, this.laneTop(k), area));
    if (this.hovered && this.hovered.lane >= 0) this.drawLaunch(context);
    context.restore();
    context.strokeStyle = this.colours.soft;
    context.fillStyle = this.colours.soft;
    context.lineWidth = 1;
    context.textAlign = 'center';
    for (const tick of T.timeTicks(axis, area.w)) {
      const x = Math.round(this.toX(tick.v)) + 0.5;
      context.beginPath();
      context.moveTo(x, bottom);
      context.lineTo(x, bottom + 5);
      context.stroke();
      context.fillText(tick.label, Math.min(Math.max(x, 24), width - 24), bottom + 14);
    }
    this.node.dataset.drawn = `${axis.from} ${axis.to}`;
  }

  drawLane(context, lane, y, area) {
    const { axis, view } = this, scale = area.w / (axis.to - axis.from), exposure = lane.stream === -1;
    let filled = -1, colour = null;
    for (let i = this.first(lane); i < lane.items.length; i++) {
      const item = lane.items[i];
      if (item.start >= axis.to) break;
      const x0 = Math.max(area.x - 2, area.x + (item.start - axis.from) * scale), x1 = Math.min(area.x + area.w + 2, area.x + (item.end - axis.from) * scale);
      if (x1 < area.x) continue;
      const wide = Math.max(x1 - x0, 1);
      if (x0 + wide <= filled && !(item === this.found)) continue; /* behind a pixel that is drawn */
      const next = exposure ? T.reasonColours[item.reason] : T.classColour(item.kind.group);
      if (next !== colour) context.fillStyle = colour = next;
      context.fillRect(x0, y, wide, this.row);
      filled = Math.ceil(x0 + wide);
      if (!exposure && item.why) {
        this.drawExposed(context, item, y, area, scale);
        colour = null;
      }
      if (this.matches && this.matches(exposure ? item.slice : item)) {
        context.strokeStyle = this.colours.fg;
        context.lineWidth = 2;
        context.strokeRect(x0, y + 1, Math.max(wide, 2), this.row - 2);
      }
      if (wide > 26) {
        this.label(context, exposure ? view.reasons[item.reason] + ' ' + this.name(item.slice) : this.name(item), x0, Math.min(x1, area.x + area.w), y, next);
        colour = null;
      }
      if (wide > 4) {
        context.strokeStyle = this.colours.line;
        context.lineWidth = 0.5;
        context.strokeRect(x0, y, wide, this.row);
      }
      const over = exposure ? item.slice === this.hovered : item === this.hovered;
      if (over) {
        context.strokeStyle = this.colours.fg;
        context.lineWidth = 2;
        context.strokeRect(x0, y + 1, wide, this.row - 2);
      }
    }
  }

  drawExposed(context, item, y, area, scale) {
    context.fillStyle = T.reasonColours[this.view.reason(item)];
    for (const [from, to] of this.view.idle(item.start, item.end)) {
      const x0 = Math.max(area.x, area.x + (from - this.axis.from) * scale), x1 = Math.min(area.x + area.w, area.x + (to - this.axis.from) * scale);
      if (x1 > x0 - 0.5) context.fillRect(x0, y + this.row - 9, Math.max(x1 - x0, 1), 9);
    }
  }

  /* The name that fits; on a light or a dark ground. */
  label(context, text, x0, x1, y, ground) {
    const left = Math.max(x0, this.area().x) + 4, room = x1 - left - 3;
    if (room < 20) return;
    let shown = text;
    if (context.measureText(shown).width > room) {
      const letters = Math.floor(room / 6.2);
      if (letters < 3) return;
      shown = shown.slice(0, letters - 1) + '\u2026';
    }
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(ground.slice(at, at + 2), 16));
    context.fillStyle = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? '#000000' : '#ffffff';
    context.fillText(shown, left, y + this.row / 2);
  }

  name(slice) {
    if (slice.of) return 'launch of ' + this.name(slice.of);
    const op = { all_gather: 'AG', reduce_scatter: 'RS', all_reduce: 'AR' }[slice.kind.op] || slice.kind.op;
    return (slice.count > 1 ? slice.count + ' kernels' : op) + ' ' + T.short(slice.module);
  }

  /* From the launch on the host to the start of the slice. */
  drawLaunch(context) {
    const slice = this.hovered, k = this.lanes.findIndex((lane) => lane.items.includes(slice));
    if (k < 0 || slice.start - slice.issue <= 0) return;
    const x0 = this.toX(slice.issue), x1 = this.toX(slice.start), y = this.laneTop(k) + this.row / 2;
    context.strokeStyle = this.colours.fg;
    context.lineWidth = 1.5;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(x0, y - this.row / 2);
    context.lineTo(x0, y);
    context.lineTo(x1, y);
    context.stroke();
    context.setLineDash([]);
  }

  at(t, y) {
    const k = Math.floor((y - this.top) / (this.row + 4)), lane = this.lanes[k];
    if (!lane || y < this.top) return null;
    const slack = 2 * (this.axis.to - this.axis.from) / Math.max(1, this.area().w);
    let best = null;
    for (let i = this.first(lane); i < lane.items.length && lane.items[i].start <= t + slack; i++) {
      const item = lane.items[i];
      if (item.start <= t && item.end > t) return item.slice || item;
      if (item.end + slack >= t) best = item;
    }
    return best && (best.slice || best);
  }

  describe(slice) {
    const { kind } = slice, length = slice.end - slice.start, lines = [];
    lines.push(`${slice.part[0]}${this.view.parts.some((p) => p[1] > 0) ? ', micro-batch ' + slice.part[1] : ''}, ${slice.module}`);
    lines.push(`${T.time(length)}, from ${T.time(slice.start, this.view.step)} to ${T.time(slice.end, this.view.step)}`);
    if (kind.group < 10) lines.push(`launched ${T.time(Math.max(0, slice.start - slice.issue))} before`);
    if (slice.count > 1) lines.push(`${slice.count} kernels that are ${slice.of ? 'launched' : 'drawn'} as one`);
    else if (kind.flop > 0 && length > 0) lines.push(`${T.fixed(kind.flop / 1e9, 2)} GFLOP, ${T.fixed(kind.flop / length / 1e12, 1)} TFLOP/s`);
    if (slice.count === 1 && kind.bytes > 0) lines.push(`${T.bytes(kind.bytes)}${length > 0 ? `, ${T.fixed(kind.bytes / length / 1e9, 1)} GB/s` : ''}${kind.comm ? ', communicator ' + kind.comm : ''}`);
    if (slice.collective) {
      lines.push(`exposed ${T.time(slice.exposed)}, hidden ${T.time(slice.hidden)}${slice.beside > 0 ? `, beside others ${T.time(slice.beside)}` : ''}`);
      if (slice.why) slice.why.forEach((s, r) => { if (s > 5e-9) lines.push(`\u2022 ${this.view.reasons[r]}: ${T.time(s)}`); });
    }
    return [T.el('b', {}, this.name(slice)), ...lines.map((line) => T.el('div', {}, line))];
  }

  hover(event, t, y) {
    const slice = this.at(t, y);
    if (slice !== this.hovered) {
      this.hovered = slice;
      this.draw();
    }
    if (slice) T.tip.show(event, ...this.describe(slice));
    else T.tip.hide();
  }

  leave() {
    T.tip.hide();
    if (this.hovered) {
      this.hovered = null;
      this.draw();
    }
  }

  drawCursor() {
    const { axis } = this, hidden = axis.cursor === null || axis.cursor < axis.from || axis.cursor > axis.to;
    this.line.hidden = hidden;
    if (!hidden) this.line.style.left = this.toX(axis.cursor) + 'px';
  }
};
