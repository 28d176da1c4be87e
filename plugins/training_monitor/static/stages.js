// One bar for each server: what the stages of the input take of an example. The table of the figure has the numbers.
import {element} from "./monitor.js";

// A legend, and a bar for each server. `bars` are those of pipeline/report/input_stages.py.
export function stacked_bars(bars) {
  const longest = Math.max(...bars.map(({parts}) => total(parts)));
  const labels = new Map(bars.flatMap(({parts}) => parts.map(({label, color}) => [label, color])));
  const keys = [...labels].map(([label, color]) => element("span", {}, colored("i", color), label));
  const legend = element("p", {class: "stage-keys"}, ...keys);
  return [element("div", {class: "stages"}, legend, ...bars.map(bar => row(bar, longest)))];
}

const total = parts => parts.reduce((sum, {ms}) => sum + ms, 0);

function row({name, parts}, longest) {
  const words = parts.map(({label, ms}) => `${label} ${text(ms)}`).join(", ");
  const bar = element("div", {class: "stage-bar", role: "img", "aria-label": `${name} ${words}`.trim()});
  for (const {label, color, ms} of parts) {
    const part = colored("span", color);
    part.title = `${label}: ${text(ms)}`;
    part.style.width = `${100 * ms / longest}%`;
    bar.append(part);
  }
  return element("div", {class: "stage-row"}, element("span", {}, name), bar, element("span", {}, text(total(parts))));
}

function colored(name, color) {
  const node = element(name);
  node.style.background = color;  // The page's policy refuses an attribute `style`.
  return node;
}

const text = ms => ms >= 1 ? `${ms.toPrecision(3)} ms` : `${(1000 * ms).toPrecision(3)} µs`;
