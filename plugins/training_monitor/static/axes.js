// Axes that figures have in common: the time is one for all, and what two trainings show under the same title is as
// high. Each figure is a document of its own to Bokeh, which shares no axes between those.

const LOOK_MS = 300;

export class Axes {
  constructor() {
    this.times = [];
    this.whole = [0, 1];
    this.looks = [];
    this.alike = new Map();
  }

  // Take in the plots of a figure. Not by their places: with a GPU there are more panels, and others below each other.
  add(document) {
    const time = document.get_model_by_name("time");
    if (time) this.follow(time);
    for (const plot of document.roots()) this.alike.set(plot.title.text, [...(this.alike.get(plot.title.text) ?? []), plot]);
  }

  // Forget plots that are drawn no more.
  remove(document) {
    const time = document.get_model_by_name("time");
    this.times = this.times.filter(each => each !== time);
    for (const [title, plots] of this.alike) this.alike.set(title, plots.filter(plot => plot.document !== document));
  }

  // Call with [start, end] where somebody zooms or moves, when it has settled, and with null where the whole is shown.
  on_look(look) {
    this.looks.push(look);
  }

  follow(time) {
    this.times.push(time);
    this.show(time, this.closer ?? this.whole);
    time.change.connect(() => this.moved(time));
  }

  moved({start, end}) {
    if (this.showing) return;
    this.closer = start === this.whole[0] && end === this.whole[1] ? null : [start, end];
    for (const time of this.times) this.show(time, [start, end]);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.looks.forEach(look => look(this.closer)), LOOK_MS);
  }

  show(time, [start, end]) {
    this.showing = true;
    time.setv({start, end, reset_start: this.whole[0], reset_end: this.whole[1]});
    this.showing = false;
  }

  // The newest of what was measured, in ms from the start, of any training.
  reach(end) {
    if (!(end > this.whole[1])) return;
    this.whole = [0, end];
    for (const time of this.times) this.show(time, this.closer ?? this.whole);
  }

  // Have all that is drawn be seen: after the curves came, or others.
  fit() {
    for (const plots of this.alike.values()) {
      if (plots[0]?.y_range.tags.includes("from zero")) this.fit_from_zero(plots);
      if (plots.length > 1) this.fit_around(plots);
    }
  }

  fit_from_zero(plots) {
    const [, highest] = extent(plots, "y");
    const end = highest > 0 ? 1.05 * highest : 1;
    for (const {y_range} of plots) y_range.setv({end, reset_end: end});
  }

  // Others, as percents and the time, are told where they end.
  fit_around(plots) {
    for (const axis of ["x", "y"]) {
      const ranges = plots.map(plot => plot[`${axis}_range`]).filter(range => range.type === "DataRange1d");
      if (!ranges.length) continue;
      const [lowest, highest] = extent(plots, axis);
      if (lowest > highest) continue;  // nothing yet
      const margin = 0.05 * (highest - lowest) || ranges[0].default_span / 2;
      for (const range of ranges)
        if (!range.have_updated_interactively) range.setv({start: lowest - margin, end: highest + margin});
    }
  }
}

// The lowest and the highest value that plots show; [Infinity, -Infinity] where there is none.
function extent(plots, axis) {
  let lowest = Infinity, highest = -Infinity;
  for (const {glyph, data_source} of plots.flatMap(plot => plot.renderers))
    for (const values of data_source ? values_of(glyph, data_source.data, axis) : [])
      for (const value of values) {
        if (value < lowest) lowest = value;
        if (value > highest) highest = value;
      }
  return [lowest, highest];
}

// Columns of what a line goes through, or of where bars begin and end; these are stacked.
function values_of({x, y, top, width}, data, axis) {
  if (axis === "y" && top) return [sums(top.expr.fields.map(field => data[field]))];
  const values = data[(axis === "x" ? x : y)?.field] ?? [];
  return axis === "x" && width ? [-0.5, 0.5].map(part => values.map(value => value + part * width.value)) : [values];
}

function sums(columns) {
  return columns[0].map((_, row) => columns.reduce((sum, column) => sum + column[row], 0));
}
