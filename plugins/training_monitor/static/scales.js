// The axes of charts: which ticks they have, and how their values are written.

const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const TIME_STEPS = [
  ...[1, 2, 5, 10, 15, 30].map(each => each * SECOND), ...[1, 2, 5, 10, 15, 30].map(each => each * MINUTE),
  ...[1, 2, 3, 6, 12].map(each => each * HOUR), ...[1, 2, 5, 10, 30, 100, 300, 1000].map(each => each * DAY),
];
const UNITS = [[DAY, "d"], [HOUR, "h"], [MINUTE, "min"]];
const LINEAR_UNTIL = 0.1;  // The scale "symlog" is linear up to this value, and logarithmic above.
const ROUNDING = 1e-9;

// How values of a scale are placed on its axis.
export const SCALES = {
  linear: {place: value => value, value: place => place, ticks: even_ticks},
  log: {place: Math.log10, value: place => 10 ** place, ticks: log_ticks},
  symlog: {
    place: value => Math.sign(value) * Math.log10(1 + Math.abs(value) / LINEAR_UNTIL),
    value: place => Math.sign(place) * LINEAR_UNTIL * (10 ** Math.abs(place) - 1),
    ticks: symlog_ticks,
  },
};

// The x axes that the reader can choose. `of` returns the places of rows, from their times (ms since the start) and
// steps. `ticks` returns pairs of a place and its text.
export const X_AXES = {
  duration: {
    title: "duration",
    of: ({time}) => time,
    text: place => duration(place),
    ticks(low, high, count) {
      const step = time_step((high - low) / count);
      return multiples(step, low, high).map(place => [place, duration(place, Math.min(step, SECOND))]);
    },
  },
  step: {title: "step", of: ({step}) => step, text: place => `step ${whole(place)}`, ticks: whole_ticks},
  epoch: {
    title: "epoch",
    of: ({step}, {steps_per_epoch}) => step.map(each => each / (steps_per_epoch || NaN)),
    text: place => `epoch ${number(place)}`,
    ticks: whole_ticks,
  },
  clock: {
    title: "clock time",
    of: ({time}, {start}) => time.map(each => each + start),
    text: place => `${day(place)} ${clock(place, SECOND)}`,
    ticks(low, high, count) {
      const step = time_step((high - low) / count), zone = MINUTE * new Date(low).getTimezoneOffset();
      const places = multiples(step, low - zone, high - zone).map(each => each + zone);
      return places.map((place, each) => [place, each && day(place) === day(places[each - 1]) ? clock(place, step) : `${day(place)} ${clock(place, step)}`]);
    },
  },
};

function time_step(least) {
  return least < SECOND ? nice(least) : (TIME_STEPS.find(each => each >= least) ?? TIME_STEPS.at(-1));
}

// Write a duration as in 1 h 20 min. It is rounded to `resolution` (ms).
export function duration(milliseconds, resolution = milliseconds < MINUTE ? 100 : SECOND) {
  let rest = Math.round(milliseconds / resolution) * resolution;
  const words = [];
  for (const [unit, name] of UNITS) {
    if (rest >= unit) words.push(`${Math.floor(rest / unit)} ${name}`);
    rest %= unit;
  }
  if (rest || !words.length) words.push(`${Number((rest / SECOND).toFixed(3))} s`);
  return words.join(" ");
}

const day = place => new Date(place).toLocaleDateString("en-US", {day: "numeric", month: "short"});

function clock(place, step) {
  return new Date(place).toLocaleTimeString("en-GB", {timeStyle: step < MINUTE ? "medium" : "short"});
}

// Write a number with at most `digits` significant digits.
export function number(value, digits = 4) {
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e7)) return value.toExponential(Math.min(2, digits - 1));
  return value.toLocaleString("en-US", {maximumSignificantDigits: size >= 1000 ? 7 : digits});
}

const whole = value => Math.round(value).toLocaleString("en-US");

// The next larger number of 1, 2 and 5 times a power of ten.
function nice(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find(each => each * power >= least * (1 - ROUNDING));
}

function multiples(step, low, high) {
  const first = Math.ceil(low / step - ROUNDING), last = Math.floor(high / step + ROUNDING);
  return Array.from({length: Math.max(0, last - first + 1)}, (_, each) => (first + each) * step);
}

function whole_ticks(low, high, count) {
  return multiples(Math.max(1, nice((high - low) / count)), low, high).map(place => [place, whole(place)]);
}

function even_ticks(low, high, count) {
  return multiples(nice((high - low) / count), low, high);
}

function log_ticks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 1) return even_ticks(low, high, count);
  const parts = decades < 3 ? [1, 2, 5] : [1];
  const powers = multiples(Math.max(1, Math.ceil(decades / count)), Math.floor(Math.log10(low)), Math.log10(high));
  return powers.flatMap(power => parts.map(part => part * 10 ** power)).filter(each => each >= low && each <= high);
}

function symlog_ticks(low, high, count) {
  const found = (high > 10 ? [0, 0.1, 1, 10, 100] : [0, 0.1, 0.3, 1, 3, 10]).filter(each => each >= low && each <= high);
  return found.length < 3 ? even_ticks(low, high, count) : found;
}
