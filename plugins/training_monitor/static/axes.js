// Axes that figures share: all have the same time, and plots of two trainings with the same title have the same height.
// Bokeh shares no axes between documents, and each figure has documents of its own.

const ZOOM_MS = 300;

export class Axes {
  constructor() {
    this.time_axes = [];
    this.whole = [0, 1];
    this.listeners = [];
    this.plots_by_title = new Map();
  }

  // Add the plots of a document. They are matched by title, because a training with a GPU has more panels.
  add(document) {
    const time = document.get_model_by_name("time");
    if (time) this.follow(time);
    for (const plot of document.roots()) this.plots_by_title.set(plot.title.text, [...(this.plots_by_title.get(plot.title.text) ?? []), plot]);
  }

  // Remove the plots of a document that is no longer drawn.
  remove(document) {
    const time = document.get_model_by_name("time");
    this.time_axes = this.time_axes.filter(each => each !== time);
    for (const [title, plots] of this.plots_by_title) this.plots_by_title.set(title, plots.filter(plot => plot.document !== document));
  }

  // Call the listener with [start, end] after the user has zoomed or moved, and with null if the whole is shown.
  on_zoom(listener) {
    this.listeners.push(listener);
  }

  follow(time) {
    this.time_axes.push(time);
    this.show(time, this.zoom ?? this.whole);
    time.change.connect(() => this.on_move(time));
  }

  on_move({start, end}) {
    if (this.is_setting) return;
    this.zoom = start === this.whole[0] && end === this.whole[1] ? null : [start, end];
    for (const time of this.time_axes) this.show(time, [start, end]);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.listeners.forEach(listener => listener(this.zoom)), ZOOM_MS);
  }

  show(time, [start, end]) {
    this.is_setting = true;
    time.setv({start, end, reset_start: this.whole[0], reset_end: this.whole[1]});
    this.is_setting = false;
  }

  // Extend the time axes to the newest sample of any training, in ms since its start.
  extend(end) {
    if (!(end > this.whole[1])) return;
    this.whole = [0, end];
    for (const time of this.time_axes) this.show(time, this.zoom ?? this.whole);
  }

  // Fit the axes to the curves, after these have changed.
  fit() {
    for (const plots of this.plots_by_title.values()) {
      if (plots[0]?.y_range.tags.includes("from zero")) this.fit_from_zero(plots);
      if (plots.length > 1) this.fit_around(plots);
    }
  }

  fit_from_zero(plots) {
    const [, highest] = extent(plots, "y");
    const end = highest > 0 ? 1.05 * highest : 1;
    for (const {y_range} of plots) y_range.setv({end, reset_end: end});
  }

  // Fit the axes that Bokeh would fit itself. Axes of percentages and of the time have fixed ends.
  fit_around(plots) {
    for (const axis of ["x", "y"]) {
      const ranges = plots.map(plot => plot[`${axis}_range`]).filter(range => range.type === "DataRange1d");
      if (!ranges.length) continue;
      const [lowest, highest] = extent(plots, axis);
      if (lowest > highest) continue;  // There are no values yet.
      const margin = 0.05 * (highest - lowest) || ranges[0].default_span / 2;
      for (const range of ranges)
        if (!range.have_updated_interactively) range.setv({start: lowest - margin, end: highest + margin});
    }
  }
}

// The lowest and the highest value that plots show; [Infinity, -Infinity] if there is none.
function extent(plots, axis) {
  let lowest = Infinity, highest = -Infinity;
  for (const {glyph, data_source} of plots.flatMap(plot => plot.renderers))
    for (const values of data_source ? columns_of(glyph, data_source.data, axis) : [])
      for (const value of values) {
        if (value < lowest) lowest = value;
        if (value > highest) highest = value;
      }
  return [lowest, highest];
}

// The columns of values of a line, or of the ends of bars, which are stacked.
function columns_of({x, y, top, width}, data, axis) {
  if (axis === "y" && top) return [sums(top.expr.fields.map(field => data[field]))];
  const values = data[(axis === "x" ? x : y)?.field] ?? [];
  return axis === "x" && width ? [-0.5, 0.5].map(part => values.map(value => value + part * width.value)) : [values];
}

function sums(columns) {
  return columns[0].map((_, row) => columns.reduce((sum, column) => sum + column[row], 0));
}
