// The rows of a source: its columns as arrays of numbers, with NaN for a value that is not known.
import {X_AXES} from "./scales.js";

export class Source {
  // `run` has what places rows on an axis: its start (Unix ms) and its steps per epoch.
  constructor(columns, run) {
    this.run = run;
    this.columns = Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, Float64Array.from(values, each => each ?? NaN)]));
    this.places = new Map();
  }

  // The places of the rows on an axis. A source of epochs has one row for each.
  x(axis) {
    return kept(this.places, axis, () => this.columns.epoch ?? X_AXES[axis].of(this.columns, this.run));
  }

  // Return the exponential mean of a column. `weight` is the part of the mean before, from 0 to 1.
  smoothed(name, weight) {
    const values = this.columns[name];
    if (!weight || !values) return values;
    if (this.weight !== weight) [this.weight, this.means] = [weight, new Map()];
    return kept(this.means, name, () => exponential_mean(values, weight));
  }

  // Return the row that is the nearest to a place on an axis, or -1 if no row has a place.
  nearest(axis, place) {
    let found = -1, least = Infinity;
    this.x(axis).forEach((x, row) => {
      if (Math.abs(x - place) < least) [found, least] = [row, Math.abs(x - place)];
    });
    return found;
  }

  // Return where a place of one axis is on another one. Between two rows, it is interpolated.
  converted(place, from, to) {
    const [x, y] = [this.x(from), this.x(to)];
    let before = -1;
    for (let row = 0; row < x.length; row++) {
      if (Number.isNaN(x[row]) || Number.isNaN(y[row])) continue;
      if (x[row] >= place) {
        if (before < 0 || x[row] === x[before]) return y[row];
        return y[before] + (y[row] - y[before]) * (place - x[before]) / (x[row] - x[before]);
      }
      before = row;
    }
    return before < 0 ? NaN : y[before];
  }
}

function exponential_mean(values, weight) {
  let mean = 0, total = 0;  // The total weight is less than 1 at first, because there is no value before the first.
  return values.map(value => {
    if (Number.isNaN(value)) return NaN;
    mean = weight * mean + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return mean / total;
  });
}

// Return the value of a key. It is computed once.
function kept(map, key, compute) {
  if (!map.has(key)) map.set(key, compute());
  return map.get(key);
}
