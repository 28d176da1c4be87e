// What all charts of a page share: the x axis, smoothing, the logarithmic scale, the part that is shown, the pointer.
import {keep_state, read_state} from "./address.js";
import {element} from "./monitor.js";
import {X_AXES} from "./scales.js";

const ZOOM_MS = 300, HELP_ID = "charts-help", LATE = 0.0001;
const MOUSE = "Mouse: drag to zoom in, hold Shift and drag to move, double-click to show all.";
const KEYS = "Keys, if a chart has the focus: Left and Right move, + and - zoom, 0 shows all, Shift with Left or Right reads the values of each row, Escape hides them.";
const LOG = "On a logarithmic axis, zero is drawn at the lower end.";

export class Charts {
  // `name` is the start of the names of downloads.
  constructor(name) {
    this.name = name;
    this.charts = [];
    this.listeners = [];
    this.planned = new Set();
    this.sources = [];
    this.help_id = HELP_ID;
    this.pointed = null;
    this.pointer = null;
    this.state = state_of(read_state(["x", "smooth", "log", "from", "to"]));
    this.resized = new ResizeObserver(() => this.charts.forEach(chart => chart.width !== undefined && chart.width !== chart.place.clientWidth && chart.draw()));
    this.controls = this.build_controls();
    this.controls.hidden = true;
    this.show_state();
  }

  add(chart) {
    this.charts.push(chart);
    this.controls.hidden = false;
    this.resized.observe(chart.place);
  }

  remove(charts) {
    charts.forEach(({place}) => this.resized.unobserve(place));
    this.charts = this.charts.filter(each => !charts.includes(each));
  }

  // Call the listener after the part that is shown has changed.
  on_zoom(listener) {
    this.listeners.push(listener);
  }

  // Draw the rows of these sources. They have the same columns `time` and `step`.
  show_rows(sources) {
    this.sources = sources;
    this.draw();
  }

  draw() {
    this.charts.forEach(chart => chart.draw());
  }

  // Do something before the next frame. The mouse moves more often than the screen changes.
  soon(name, act) {
    if (this.planned.has(name)) return;
    this.planned.add(name);
    requestAnimationFrame(() => {
      this.planned.delete(name);
      act();
    });
  }

  // --- the part that is shown ---

  // Both ends of the x axis.
  range(axis) {
    const {x, zoom} = this.state;
    if (!zoom) return this.whole(axis);
    if (axis === x) return zoom;
    const [start, end] = zoom.map(place => this.converted(place, x, axis));
    return end > start ? [start, end] : this.whole(axis);
  }

  whole(axis) {
    const ends = this.sources.flatMap(source => extremes(source.x(axis)));
    if (!ends.length) return [0, 1];
    const first = axis === "clock" ? Math.min(...ends) : 0;
    return [first, Math.max(...ends, first + 1)];
  }

  converted(place, from, to) {
    return from === to ? place : (this.sources[0]?.converted(place, from, to) ?? NaN);
  }

  // The part that is shown, in ms since the start; null if it is all, or not known yet.
  shown_time() {
    const {x, zoom} = this.state;
    const times = zoom?.map(place => this.converted(place, x, "duration"));
    return times?.every(Number.isFinite) ? times : null;
  }

  zoom_to(axis, range) {
    const [from, to] = range.map(place => this.converted(place, axis, this.state.x)), whole = this.whole(this.state.x);
    const span = Math.max(to - from, LATE * (whole[1] - whole[0]));
    if (!(span < whole[1] - whole[0])) return this.show_all();
    const start = Math.min(Math.max(from, whole[0]), whole[1] - span);
    this.change({zoom: [start, start + span]});
  }

  // Zoom in (a factor below 1) or out, around the pointer or the middle.
  zoom_by(factor) {
    const axis = this.state.x, [start, end] = this.range(axis), pointer = this.pointer_on(axis);
    const middle = start <= pointer && pointer <= end && pointer !== null ? pointer : (start + end) / 2;
    this.zoom_to(axis, [middle - factor * (middle - start), middle + factor * (end - middle)]);
  }

  move(part) {
    const axis = this.state.x, [start, end] = this.range(axis);
    this.zoom_to(axis, [start, end].map(each => each + part * (end - start)));
  }

  show_all() {
    this.change({zoom: null});
  }

  // --- the pointer ---

  // Show the values at a place on the axis of a chart; of none if the chart is null.
  point(chart, place) {
    this.pointed = chart;
    this.pointer = chart && {axis: chart.axis, place};
    this.soon("point", () => this.charts.forEach(each => each.show_pointer()));
  }

  pointer_on(axis) {
    return this.pointer && this.converted(this.pointer.place, this.pointer.axis, axis);
  }

  // --- the state, which is in the address ---

  change(change) {
    if (change.x && change.x !== this.state.x && this.state.zoom) {
      const [from, to] = this.state.zoom.map(place => this.converted(place, this.state.x, change.x));
      change.zoom = to > from ? [from, to] : null;
    }
    const is_zoomed = "zoom" in change;
    Object.assign(this.state, change);
    this.show_state();
    this.soon("draw", () => this.draw());
    clearTimeout(this.timer);
    this.is_zoomed ||= is_zoomed;
    this.timer = setTimeout(() => this.settle(), ZOOM_MS);
  }

  // A browser limits how often a page may change its address, and each request takes time.
  settle() {
    const {x, smooth, log, zoom} = this.state;
    const [from, to] = zoom?.map(short) ?? [];
    keep_state({x: x === "duration" ? "" : x, smooth: smooth && String(smooth), log: log && "yes", from, to});
    if (this.is_zoomed) this.listeners.forEach(listener => listener());
    this.is_zoomed = false;
  }

  build_controls() {
    const options = Object.entries(X_AXES).map(([name, {title}]) => element("option", {value: name}, title));
    this.x = element("select", {}, ...options);
    this.smooth = element("input", {type: "range", min: "0", max: "0.99", step: "0.01"});
    this.smooth_value = element("output");
    this.log = element("input", {type: "checkbox"});
    this.all = element("button", {type: "button"}, "Show all");
    this.legend = element("p", {class: "soft"});
    this.x.addEventListener("change", () => this.change({x: this.x.value}));
    this.smooth.addEventListener("input", () => this.change({smooth: Number(this.smooth.value)}));
    this.log.addEventListener("change", () => this.change({log: this.log.checked}));
    this.all.addEventListener("click", () => this.show_all());
    const help = element("details", {}, element("summary", {}, "Mouse and keys"), element("p", {id: HELP_ID}, `${MOUSE} ${KEYS}`));
    return element("div", {class: "controls"}, element("div", {class: "tools", role: "group", "aria-label": "All charts"},
      element("label", {}, "X axis ", this.x), element("label", {}, "Smoothing ", this.smooth, " ", this.smooth_value),
      element("label", {}, this.log, " Logarithmic"), this.all, help), this.legend);
  }

  show_state() {
    const {x, smooth, log, zoom} = this.state;
    this.x.value = x;
    this.smooth.value = smooth;
    this.smooth_value.textContent = smooth ? smooth.toFixed(2) : "off";
    this.log.checked = log;
    this.all.disabled = !zoom;
    const faint = smooth ? "Bold lines are smoothed, and faint lines are the means that were measured." : "Bold lines are means, and faint lines are the highest values.";
    this.legend.textContent = log ? `${faint} ${LOG}` : faint;
  }
}

function state_of({x, smooth, log, from, to}) {
  const [start, end] = [from, to].map(each => (each ? Number(each) : NaN));
  return {
    x: Object.hasOwn(X_AXES, x) ? x : "duration",
    smooth: smooth > 0 && smooth < 1 ? Number(smooth) : 0,
    log: log === "yes",
    zoom: start < end ? [start, end] : null,
  };
}

const short = value => String(Number(value.toPrecision(14)));

// The lowest and the highest number; none if there is no number.
function extremes(values) {
  let lowest = Infinity, highest = -Infinity;
  for (const value of values) {
    if (value < lowest) lowest = value;
    if (value > highest) highest = value;
  }
  return lowest > highest ? [] : [lowest, highest];
}
