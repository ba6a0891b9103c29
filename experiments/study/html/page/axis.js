/* axis.js: the stretch of time that several plots show together, and how a pointer changes it: drag to look closer,
 * shift and drag to move, ctrl and wheel to zoom, two clicks for all of it. */
T.Axis = class {
  constructor(whole, least) {
    this.whole = whole;
    this.least = least || 1e-6;
    this.from = 0;
    this.to = whole;
    this.cursor = null;
    this.pinned = false;
    this.plots = [];
    this.watchers = [];
    this.asked = false;
    this.frames = [];
  }

  set(from, to) {
    const length = Math.min(this.whole, Math.max(this.least, to - from));
    this.from = Math.max(0, Math.min(from + (to - from - length) / 2, this.whole - length));
    this.to = this.from + length;
    this.redraw(true);
  }

  zoom(factor, around) {
    const at = around === undefined ? (this.from + this.to) / 2 : around;
    this.set(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  move(share) {
    const by = share * (this.to - this.from);
    this.set(this.from + by, this.to + by);
  }

  /* Shows [from, to) with some room. */
  show(from, to) {
    const room = 0.15 * (to - from) + this.least;
    this.set(from - room, to + room);
  }

  point(at, pin) {
    this.cursor = at;
    if (pin !== undefined) this.pinned = pin;
    this.redraw(false);
  }

  /* Once a frame, however often it is asked for. */
  redraw(window) {
    this.moved = this.moved || window;
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => this.now());
  }

  now() {
    const begin = performance.now();
    const moved = this.moved;
    this.asked = this.moved = false;
    for (const plot of this.plots) plot.drawCursor ? (moved && plot.draw(), plot.drawCursor()) : moved && plot.draw();
    for (const watcher of this.watchers) watcher(moved);
    this.frames.push(performance.now() - begin);
    if (this.frames.length > 600) this.frames.shift();
  }

  /* plot: {node, area(): {x, w} in pixels of node, draw(), drawCursor()}; on: {move?(event, at, y), leave?(), click?(event, at, y)} */
  attach(plot, on) {
    const node = plot.node, band = T.el('div.band', { hidden: true });
    let from = null, moves = false, window = null;
    this.plots.push(plot);
    node.append(band);
    const x = (event) => event.clientX - node.getBoundingClientRect().left;
    const at = (pixel) => {
      const area = plot.area();
      return this.from + (Math.min(Math.max(pixel, area.x), area.x + area.w) - area.x) / area.w * (this.to - this.from);
    };
    node.addEventListener('pointerdown', (event) => {
      if (event.button > 1) return;
      from = x(event);
      moves = event.shiftKey || event.button === 1;
      window = [this.from, this.to];
      node.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    node.addEventListener('pointermove', (event) => {
      const here = x(event), y = event.clientY - node.getBoundingClientRect().top;
      if (from !== null && moves) {
        const by = (from - here) / plot.area().w * (window[1] - window[0]);
        this.set(window[0] + by, window[1] + by);
      } else if (from !== null) {
        band.hidden = Math.abs(here - from) < 5;
        Object.assign(band.style, { left: Math.min(here, from) + 'px', width: Math.abs(here - from) + 'px' });
      }
      if (!this.pinned) this.point(at(here));
      if (on && on.move) on.move(event, at(here), y);
    });
    node.addEventListener('pointerup', (event) => {
      const here = x(event), start = from;
      from = null;
      band.hidden = true;
      if (start === null || moves) return;
      if (Math.abs(here - start) >= 5) {
        this.set(at(Math.min(start, here)), at(Math.max(start, here)));
        return;
      }
      if (on && on.click && on.click(event, at(here), event.clientY - node.getBoundingClientRect().top)) return;
      this.point(at(here), !this.pinned);
    });
    node.addEventListener('pointercancel', () => { from = null; band.hidden = true; });
    node.addEventListener('pointerleave', () => { if (on && on.leave) on.leave(); });
    node.addEventListener('dblclick', () => this.set(0, this.whole));
    node.addEventListener('wheel', (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        this.zoom(1.0018 ** Math.max(-400, Math.min(400, event.deltaY * (event.deltaMode ? 30 : 1))), at(x(event)));
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        this.move(event.deltaX / plot.area().w);
      }
    }, { passive: false });
  }
};
