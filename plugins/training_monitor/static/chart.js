// One chart: lines or stacked bars on a canvas, with a legend, the values at the pointer, and downloads.
import {download, element} from "./monitor.js";
import {SCALES, X_AXES, number} from "./scales.js";

const LEFT = 58, RIGHT = 14, TOP = 8, BOTTOM = 24, HEIGHT = 168, MIN_LABEL = 64, MIN_GAP = 32;
const FONT = "12px Inter, system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif";
const GRAY = "#7d848c", FAINT = 0.7, BAR = 0.8, SWATCH = 22, PNG_SCALE = 2;
const MIN_DRAG = 5;  // Pixels. A shorter drag is a click.
const MARGIN = 0.05;  // Part of the range of the values that stays free above and below them.
const MIN_SPAN = 0.01;  // Part of the values that an axis spans at least, so that rounding errors fill no chart.
const HATCHES = {"/": [[0, 8, 8, 0]], "\\": [[0, 0, 8, 8]], "x": [[0, 8, 8, 0], [0, 0, 8, 8]], "-": [[0, 4, 8, 4]], ".": [[3, 4, 5, 4]]};

export class Chart {
  // `about` is a chart of pipeline/watch/live_figures.py. `sources` returns a source by its name.
  constructor(about, id, group, sources) {
    Object.assign(this, {about, group, sources, hidden: new Set()});
    this.canvas = element("canvas", {tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-label": about.title, "aria-describedby": group.help_id});
    this.line = element("div", {class: "pointer", hidden: ""});
    this.selection = element("div", {class: "selection", hidden: ""});
    this.values = element("div", {class: "values", hidden: ""});
    this.place = element("div", {class: "canvas"}, this.canvas, this.line, this.selection, this.values);
    this.buttons = about.lines.map(line => this.legend_button(line));
    const bar = element("div", {class: "keys", role: "toolbar", "aria-label": `${about.title}: lines and downloads`}, ...this.buttons, element("span", {class: "downloads"},
      this.button("PNG", "Download the chart as an image", () => this.save_png()),
      this.button("CSV", "Download the rows that are shown", () => this.save_csv())));
    move_between_buttons(bar);
    this.element = element("div", {class: "chart", id, role: "group", "aria-label": about.title}, element("h3", {}, about.title), bar, this.place);
    this.listen();
  }

  button(words, title, act) {
    const button = element("button", {type: "button", title}, words);
    button.addEventListener("click", act);
    return button;
  }

  legend_button(line) {
    const swatch = element("canvas", {width: 2 * SWATCH, height: 24, "aria-hidden": "true"}), name = element("span", {}, line.label);
    const button = element("button", {type: "button", class: "key", "aria-pressed": "true"}, swatch, name);
    const context = swatch.getContext("2d");
    context.scale(2, 2);
    draw_swatch(context, this.about, line, 0, 6);
    button.addEventListener("click", () => {
      if (!this.hidden.delete(line)) this.hidden.add(line);
      button.setAttribute("aria-pressed", String(!this.hidden.has(line)));
      this.draw();
    });
    return button;
  }

  // --- what is shown ---

  // Bars are always by epoch.
  get axis() {
    return this.about.bars ? "epoch" : this.group.state.x;
  }

  // The bar of an epoch is in the middle between its start and its end.
  get shift() {
    return this.about.bars ? 0.5 : 0;
  }

  get scale() {
    if (this.about.scale !== "linear" || this.about.bars) return SCALES[this.about.scale];
    return SCALES[this.group.state.log ? "log" : "linear"];
  }

  // The lines whose source has rows, with their values: `bold`, and behind it `faint`.
  lines() {
    const weight = this.about.bars ? 0 : this.group.state.smooth;
    return this.about.lines.flatMap(line => {
      const source = this.sources(line.source), raw = source?.columns[line.column];
      if (!raw || this.hidden.has(line)) return [];
      return [{line, source, raw, x: source.x(this.axis), bold: source.smoothed(line.column, weight), faint: weight ? raw : source.columns[`${line.column}/max`]}];
    });
  }

  // The line whose visible values have the lowest mean.
  idlest(lines, [first, last]) {
    if (!this.about.names_idlest || lines.length < 2) return null;
    const means = lines.map(({x, raw}) => mean(raw.filter((_, row) => first <= x[row] && x[row] <= last)));
    const lowest = Math.min(...means.filter(Number.isFinite));
    return lines[means.indexOf(lowest)]?.line ?? null;
  }

  // The lowest and the highest value that is visible, as the ends of the y axis.
  y_range(lines, [first, last]) {
    let lowest = Infinity, highest = -Infinity;
    const include = value => {
      if (value < lowest && (value > 0 || this.scale !== SCALES.log)) lowest = value;
      if (value > highest) highest = value;
    };
    if (this.about.bars) this.sums(lines).forEach((sum, row) => first < lines[0].x[row] && lines[0].x[row] - 1 < last && include(sum));
    else for (const {x, bold, faint} of lines)
      for (let row = 0; row < x.length; row++) {
        if (!(first <= x[row] && x[row] <= last)) continue;
        include(bold[row]);
        if (faint) include(faint[row]);
      }
    const is_whole = !this.group.state.zoom, {bars, from_zero, top} = this.about;
    if (this.scale === SCALES.log) {
      if (lowest > highest) return [1, 10];
      return lowest === highest ? [lowest / 2, highest * 2] : widened(lowest, highest, this.scale);
    }
    if (bars || (is_whole && from_zero)) lowest = Math.min(0, lowest);
    if (is_whole && top) highest = Math.max(highest, top);
    if (lowest > highest || (!lowest && !highest)) return [0, 1];
    const missing = MIN_SPAN * Math.max(Math.abs(lowest), Math.abs(highest)) - (highest - lowest);
    if (missing > 0) [lowest, highest] = [lowest - missing / 2, highest + missing / 2];
    const range = widened(lowest, highest, this.scale);
    return lowest === 0 ? [0, range[1]] : range;
  }

  sums(lines) {
    return lines.length ? lines[0].bold.map((_, row) => lines.reduce((sum, {bold}) => sum + (bold[row] || 0), 0)) : [];
  }

  // --- drawing ---

  draw() {
    const width = this.width = this.place.clientWidth, ratio = devicePixelRatio;
    if (!width) return;
    const [w, h] = [Math.round(width * ratio), Math.round(HEIGHT * ratio)];
    if (this.canvas.width !== w || this.canvas.height !== h) Object.assign(this.canvas, {width: w, height: h});
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, HEIGHT);
    this.paint(context, width, getComputedStyle(this.canvas).color);
    this.show_pointer();
  }

  paint(context, width, words) {
    const lines = this.lines(), range = this.group.range(this.axis), [low, high] = this.y_range(lines, range);
    const place = this.scale.place, [bottom_place, top_place] = [place(low), place(high)];
    const frame = {left: LEFT, right: width - RIGHT, top: TOP, bottom: HEIGHT - BOTTOM};
    const across = x => frame.left + (x - range[0]) / (range[1] - range[0]) * (frame.right - frame.left);
    // Zero has no place on a logarithmic axis, and is drawn at its lower end.
    const up = value => frame.bottom - (place(this.scale === SCALES.log ? Math.max(value, low) : value) - bottom_place) / (top_place - bottom_place) * (frame.bottom - frame.top);
    Object.assign(this, {frame, shown: {range}});
    const rows = lines[0]?.x.reduce((count, x) => count + (range[0] <= x && x <= range[1]), 0) ?? 0;
    Object.assign(this.canvas.dataset, {x: range, y: [low, high], rows});  // Tests read these.
    context.font = FONT;
    context.lineWidth = 1;
    this.paint_axes(context, {frame, range, low, high, across, up, words});
    context.save();
    context.beginPath();
    context.rect(frame.left, frame.top - 2, frame.right - frame.left + 2, frame.bottom - frame.top + 4);  // a dot at an edge
    context.clip();
    if (this.about.bars) paint_bars(context, lines, across, up);
    else {
      this.paint_ends(context, across, frame);
      const idlest = this.idlest(lines, range);
      this.name_idlest(idlest);
      for (const each of lines) if (each.faint) paint_line(context, each.x, each.faint, across, up, {color: each.line.color, alpha: FAINT, width: 1, dash: []});
      // The idlest line is painted last, so that no other one hides it.
      for (const each of [...lines].sort((one, other) => (one.line === idlest) - (other.line === idlest))) {
        paint_line(context, each.x, each.bold, across, up, {...each.line, alpha: 1, width: each.line === idlest ? 3.4 : idlest ? 1.4 : 2});
      }
    }
    context.restore();
  }

  paint_axes(context, {frame, range, low, high, across, up, words}) {
    const y_count = Math.floor((frame.bottom - frame.top) / MIN_GAP), x_count = Math.max(2, Math.floor((frame.right - frame.left) / MIN_LABEL));
    Object.assign(context, {strokeStyle: GRAY, fillStyle: words, textAlign: "right", textBaseline: "middle"});
    for (const value of this.scale.ticks(low, high, y_count)) {
      const y = Math.round(up(value)) + 0.5;
      context.globalAlpha = 0.22;
      stroke(context, frame.left, y, frame.right, y);
      context.globalAlpha = 1;
      context.fillText(this.text_of(value), frame.left - 7, y);
    }
    context.textBaseline = "top";
    let free = -Infinity;
    for (const [x, text] of X_AXES[this.axis].ticks(range[0] + this.shift, range[1] + this.shift, x_count)) {
      const at = across(x - this.shift), half = context.measureText(text).width / 2, middle = Math.min(Math.max(at, half), frame.right + RIGHT - half);
      stroke(context, Math.round(at) + 0.5, frame.bottom, Math.round(at) + 0.5, frame.bottom + 4);
      if (middle - half < free) continue;
      context.textAlign = "center";
      context.fillText(text, middle, frame.bottom + 7);
      free = middle + half + 8;
    }
    stroke(context, frame.left, frame.bottom + 0.5, frame.right, frame.bottom + 0.5);
    stroke(context, frame.left - 0.5, frame.top, frame.left - 0.5, frame.bottom);
  }

  // Mark the ends of the epochs.
  paint_ends(context, across, frame) {
    context.setLineDash([2, 4]);
    context.globalAlpha = 0.7;
    for (const x of this.sources("ends")?.x(this.axis) ?? []) stroke(context, across(x), frame.top, across(x), frame.bottom);
    context.globalAlpha = 1;
    context.setLineDash([]);
  }

  name_idlest(idlest) {
    this.about.lines.forEach((line, each) => {
      const words = line === idlest ? `${line.label}, the idlest` : line.label, name = this.buttons[each].lastChild;
      if (name.textContent !== words) name.textContent = words;
    });
  }

  text_of(value) {
    return this.about.is_share ? `${number(100 * value)}%` : number(value);
  }

  // --- the pointer ---

  // Show the values of all lines at the pointer of the group. Each chart goes to its own nearest row.
  show_pointer() {
    const pointer = this.group.pointer_on(this.axis), lines = pointer === null || !this.frame ? [] : this.lines();
    const {shift} = this;
    const rows = lines.map(({source}) => source.nearest(this.axis, pointer + shift));
    const {frame, shown} = this, x = lines.length && rows[0] >= 0 ? lines[0].x[rows[0]] : NaN;
    const at = frame && frame.left + (x - shift - shown.range[0]) / (shown.range[1] - shown.range[0]) * (frame.right - frame.left);
    const is_visible = at >= frame?.left - 1 && at <= frame?.right + 1;
    this.line.hidden = !is_visible;
    this.values.hidden = !is_visible || this.group.pointed !== this;
    if (!is_visible) return;
    this.line.style.transform = `translateX(${at}px)`;
    if (this.values.hidden) return;
    const values = lines.map(({line, bold, faint}, each) => {
      const value = bold[rows[each]], behind = faint?.[rows[each]];
      const more = Number.isNaN(behind ?? NaN) || behind === value ? "" : ` (${this.text_of(behind)})`;
      return element("div", {}, `${line.label}: ${Number.isNaN(value) ? "-" : this.text_of(value) + more}`);
    });
    this.values.replaceChildren(element("strong", {}, X_AXES[this.axis].text(x)), ...values);
    const is_right = at < (frame.left + frame.right) / 2;
    Object.assign(this.values.style, {left: is_right ? `${at + 10}px` : "", right: is_right ? "" : `${this.place.clientWidth - at + 10}px`});
  }

  // Return the place on the x axis that an event is at.
  at(event) {
    const {left} = this.canvas.getBoundingClientRect(), {frame, shown: {range}} = this;
    const part = (event.clientX - left - frame.left) / (frame.right - frame.left);
    return range[0] + Math.min(1, Math.max(0, part)) * (range[1] - range[0]);
  }

  listen() {
    const {canvas, group} = this;
    canvas.addEventListener("pointermove", event => {
      this.values.setAttribute("aria-live", "off");
      if (this.drag) this.dragged(event);
      group.point(this, this.at(event));
    });
    canvas.addEventListener("pointerleave", () => this.drag || group.point(null, null));
    canvas.addEventListener("pointerdown", event => {
      if (event.button) return;
      this.drag = {x: event.clientX, at: this.at(event), range: this.shown.range, is_move: event.shiftKey};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", event => this.dropped(event));
    canvas.addEventListener("pointercancel", () => this.end_drag());
    canvas.addEventListener("dblclick", () => group.show_all());
    canvas.addEventListener("keydown", event => this.on_key(event));
    canvas.addEventListener("blur", () => group.pointed === this && group.point(null, null));
  }

  dragged(event) {
    const {x, at, range, is_move} = this.drag;
    if (is_move) {
      const scale = (range[1] - range[0]) / (this.frame.right - this.frame.left);
      this.group.zoom_to(this.axis, range.map(each => each - (event.clientX - x) * scale));
      return;
    }
    const {left} = this.canvas.getBoundingClientRect(), ends = [x - left, event.clientX - left].sort((one, other) => one - other);
    this.selection.hidden = ends[1] - ends[0] < MIN_DRAG;
    Object.assign(this.selection.style, {left: `${ends[0]}px`, width: `${ends[1] - ends[0]}px`});
    this.drag.to = [at, this.at(event)].sort((one, other) => one - other);
  }

  dropped(event) {
    const drag = this.drag;
    this.end_drag();
    if (drag && !drag.is_move && Math.abs(event.clientX - drag.x) >= MIN_DRAG && drag.to) this.group.zoom_to(this.axis, drag.to);
  }

  end_drag() {
    this.drag = null;
    this.selection.hidden = true;
  }

  on_key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const direction = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (direction && event.shiftKey) this.step_pointer(direction);
    else if (direction) this.group.move(0.1 * direction);
    else if (event.key === "+" || event.key === "=") this.group.zoom_by(0.5);
    else if (event.key === "-") this.group.zoom_by(2);
    else if (event.key === "0") this.group.show_all();
    else if (event.key === "Escape") this.group.point(null, null);
    else return;
    event.preventDefault();
  }

  // Move the pointer to the next row, which a screen reader then reads.
  step_pointer(direction) {
    const [first] = this.lines(), {range} = this.shown;
    if (!first) return;
    this.values.setAttribute("aria-live", "polite");
    const pointer = this.group.pointer_on(this.axis), places = [...first.x].filter(x => range[0] <= x && x <= range[1]);
    const from = pointer ?? (direction > 0 ? -Infinity : Infinity);
    const next = direction > 0 ? places.find(x => x > from) : places.findLast(x => x < from);
    if (next !== undefined) this.group.point(this, next);
  }

  // --- downloads ---

  save_png() {
    const canvas = element("canvas"), context = canvas.getContext("2d"), width = this.place.clientWidth, style = getComputedStyle(this.canvas);
    context.font = FONT;
    const rows = [[]];
    let used = LEFT;
    for (const [each, line] of this.about.lines.entries()) {
      if (this.hidden.has(line)) continue;
      const words = this.buttons[each].lastChild.textContent, needed = SWATCH + 24 + context.measureText(words).width;
      if (used + needed > width && rows.at(-1).length) [used] = [LEFT, rows.push([])];
      rows.at(-1).push({line, words, x: used});
      used += needed;
    }
    const head = 28 + 20 * rows.length;
    Object.assign(canvas, {width: PNG_SCALE * width, height: PNG_SCALE * (head + HEIGHT)});
    context.scale(PNG_SCALE, PNG_SCALE);
    context.fillStyle = getComputedStyle(document.body).backgroundColor;
    context.fillRect(0, 0, width, head + HEIGHT);
    Object.assign(context, {font: `bold ${FONT}`, fillStyle: style.color, textBaseline: "middle"});
    context.fillText(this.about.title, LEFT, 16);
    context.font = FONT;
    rows.forEach((row, number) => row.forEach(({line, words, x}) => {
      draw_swatch(context, this.about, line, x, 38 + 20 * number);
      Object.assign(context, {fillStyle: style.color, textBaseline: "middle", textAlign: "left"});
      context.fillText(words, x + SWATCH + 6, 38 + 20 * number);
    }));
    context.translate(0, head);
    this.paint(context, width, style.color);
    canvas.toBlob(image => download(`${this.file_name}.png`, image));
  }

  save_csv() {
    download(`${this.file_name}.csv`, new Blob([this.csv()], {type: "text/csv"}));
  }

  // The rows that are shown. If the lines have different sources, a row has values of one of them.
  csv() {
    const [low, high] = this.shown.range, {lines} = this.about, rows = [];
    const with_max = lines.map(({source, column}) => Boolean(this.sources(source)?.columns[`${column}/max`]));
    for (const name of new Set(lines.map(({source}) => source))) {
      const source = this.sources(name);
      source?.x(this.axis).forEach((x, row) => {
        if (!(low <= x && x <= high)) return;
        const values = lines.flatMap(({source: of, column}, each) => [column, ...(with_max[each] ? [`${column}/max`] : [])].map(key => of === name ? source.columns[key]?.[row] : NaN));
        rows.push([...places_of(source, row), ...values]);
      });
    }
    rows.sort((one, other) => one[0] - other[0]);
    const names = lines.flatMap(({label}, each) => [label, ...(with_max[each] ? [`${label}, highest`] : [])]);
    return [[...PLACES, ...names].map(quoted), ...rows.map(row => row.map(each => Number.isNaN(each ?? NaN) ? "" : each))].map(row => row.join(",")).join("\n") + "\n";
  }

  get file_name() {
    return `${this.group.name} ${this.about.title}`.replaceAll(/[^\w.+-]+/g, "_").replace(/_+$/, "");
  }
}

const PLACES = ["seconds since the start", "unix time (s)", "step", "epoch"];

function places_of(source, row) {
  const {start, steps_per_epoch} = source.run, {time, step, epoch} = source.columns;
  if (epoch) return [NaN, NaN, epoch[row] * steps_per_epoch, epoch[row]];
  return [time[row] / 1000, (time[row] + start) / 1000, step[row], step[row] / steps_per_epoch];
}

const quoted = words => `"${words.replaceAll('"', '""')}"`;

function mean(values) {
  let sum = 0, count = 0;
  for (const value of values) if (!Number.isNaN(value)) [sum, count] = [sum + value, count + 1];
  return sum / count;
}

// Return the ends of an axis, with a margin on both sides of the values.
function widened(low, high, {place, value}) {
  const margin = MARGIN * (place(high) - place(low));
  return [value(place(low) - margin), value(place(high) + margin)];
}

function stroke(context, x, y, to_x, to_y) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(to_x, to_y);
  context.stroke();
}

function paint_line(context, x, values, across, up, {color, alpha, width, dash}) {
  Object.assign(context, {strokeStyle: color, fillStyle: color, globalAlpha: alpha, lineWidth: width, lineJoin: "round"});
  context.setLineDash(dash);
  context.beginPath();
  let is_on = false, last = [];
  const dots = [];
  for (let row = 0; row < x.length; row++) {
    const is_known = !Number.isNaN(x[row]) && !Number.isNaN(values[row]);
    if (is_known) {
      const here = [across(x[row]), up(values[row])];
      if (is_on) context.lineTo(...here);
      else context.moveTo(...here);
      if (!is_on) last = [row, here];
    }
    // A value alone has no line.
    if (is_on && !is_known && last[0] === row - 1) dots.push(last[1]);
    is_on = is_known;
  }
  if (is_on && last[0] === x.length - 1) dots.push(last[1]);
  context.stroke();
  for (const [dot_x, dot_y] of dots) context.fillRect(dot_x - 2, dot_y - 2, 4, 4);
  context.setLineDash([]);
  context.globalAlpha = 1;
}

function paint_bars(context, lines, across, up) {
  lines[0]?.x.forEach((epoch, row) => {
    const left = across(epoch - 0.5 - BAR / 2), width = Math.max(1, across(epoch - 0.5 + BAR / 2) - left);
    let sum = 0;
    for (const {line, bold} of lines) {
      const from = up(sum), to = up(sum += bold[row] || 0);
      fill(context, line, left, to, width, from - to);
    }
  });
}

// Fill a rectangle with a color and its hatch.
function fill(context, {color, hatch}, x, y, width, height) {
  context.fillStyle = color;
  context.fillRect(x, y, width, height);
  if (!HATCHES[hatch] || width < 4) return;
  context.fillStyle = hatched(context, hatch);
  context.fillRect(x, y, width, height);
}

const patterns = new Map();

function hatched(context, hatch) {
  if (!patterns.has(hatch)) {
    const tile = element("canvas", {width: 8, height: 8}), drawn = tile.getContext("2d");
    Object.assign(drawn, {strokeStyle: "rgb(255 255 255 / 55%)", lineWidth: hatch === "." ? 2 : 1});
    for (const ends of HATCHES[hatch]) stroke(drawn, ...ends);
    patterns.set(hatch, context.createPattern(tile, "repeat"));
  }
  return patterns.get(hatch);
}

function draw_swatch(context, {bars}, line, x, y) {
  if (bars) return fill(context, line, x, y - 5, SWATCH, 10);
  Object.assign(context, {strokeStyle: line.color, lineWidth: 2.5});
  context.setLineDash(line.dash);
  stroke(context, x, y, x + SWATCH, y);
  context.setLineDash([]);
}

// One tab stop for all buttons of a bar. The arrow keys move between them.
function move_between_buttons(bar) {
  const buttons = [...bar.querySelectorAll("button")];
  buttons.slice(1).forEach(button => button.setAttribute("tabindex", "-1"));
  bar.addEventListener("keydown", event => {
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key], from = buttons.indexOf(document.activeElement);
    if (!step || from < 0) return;
    const to = buttons[(from + step + buttons.length) % buttons.length];
    buttons[from].setAttribute("tabindex", "-1");
    to.setAttribute("tabindex", "0");
    to.focus();
    event.preventDefault();
  });
}
