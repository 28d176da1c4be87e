// Axes that figures have in common: the time is one for all, and what lies at the same place of the page of two
// trainings is as high. Each figure is a document of its own to Bokeh, which shares no axes between those.

const LOOK_MS = 300;

export class Axes {
  constructor() {
    this.times = [];
    this.whole = [0, 1];
    this.looks = [];
    this.alike = new Map();
  }

  // Take in the plots of a figure, by the names of their places.
  add(document, places) {
    const time = document.get_model_by_name("time");
    if (time) this.follow(time);
    document.roots().forEach((plot, number) => this.alike.set(places[number], [...(this.alike.get(places[number]) ?? []), plot]));
  }

  // Forget plots that are drawn no more.
  remove(document) {
    const time = document.get_model_by_name("time");
    this.times = this.times.filter(each => each !== time);
    for (const [place, plots] of this.alike) this.alike.set(place, plots.filter(plot => plot.document !== document));
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
      else if (plots.length > 1) this.fit_around(plots);
    }
  }

  fit_from_zero(plots) {
    const [, highest] = extent(plots, "y");
    const end = highest > 0 ? 1.05 * highest : 1;
    for (const {y_range} of plots) y_range.setv({end, reset_end: end});
  }

  fit_around(plots) {
    for (const axis of ["x", "y"]) {
      const [lowest, highest] = extent(plots, axis);
      const margin = 0.05 * (highest - lowest) || 0.5;
      if (lowest > highest) continue;  // nothing yet, or no lines
      for (const range of plots.map(plot => plot[`${axis}_range`]))  // others, as percents and the time, are told where they end
        if (range.type === "DataRange1d" && !range.have_updated_interactively) range.setv({start: lowest - margin, end: highest + margin});
    }
  }
}

// The lowest and the highest value of the lines of plots; [Infinity, -Infinity] where there is none.
function extent(plots, axis) {
  let lowest = Infinity, highest = -Infinity;
  for (const {glyph, data_source} of plots.flatMap(plot => plot.renderers))
    for (const value of data_source?.data[glyph?.[axis]?.field] ?? []) {
      if (value < lowest) lowest = value;
      if (value > highest) highest = value;
    }
  return [lowest, highest];
}
