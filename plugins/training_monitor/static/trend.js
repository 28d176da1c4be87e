// The trend of a dataset name over its last trainings: a small chart for each number, above the list.
import {RequestError, element, request_json, run_link, table} from "./monitor.js";

const EVERY_MS = 60000, CONTINUE_MS = 300;
const WIDTH = 240, HEIGHT = 64, EDGE = 6, RADIUS = 2.5;

// As `percent` of `pipeline/monitor/diagnosis.py` writes it.
function percent(value) {
  if (value === 0) return "0%";
  if (value < 0.0005) return "under 0.1%";
  const is_close = value < 0.1 || (value >= 0.995 && value < 0.9995);
  return `${(100 * value).toFixed(is_close ? 1 : 0)}%`;
}
const accuracy = value => `${(100 * value).toFixed(1)}%`;
const whole = value => value.toLocaleString("en", {maximumFractionDigits: 0});
const three_digits = value => (Math.abs(value) >= 100 ? whole(value) : String(Number(value.toPrecision(3))));
// As `four_digits` of `pipeline/evaluation/scales.py` writes it.
export function four_digits(value) {
  const four = Number(value.toPrecision(4));
  const size = Math.abs(four);
  if (four && (size < 1e-4 || size >= 1e15)) return four.toExponential().replace(/(e[+-])(\d)$/, "$10$2");
  const exponent = Number(four.toExponential().split("e")[1]);
  const digits = Math.max(0, 3 - exponent);
  return four.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
}

const CHARTS = [
  {id: "images", name: "Examples", text: whole},
  {id: "rejected", name: "Rejected examples", text: whole},
  {id: "accuracy", name: "Accuracy", text: accuracy},
  {id: "error", name: "Mean absolute error", text: four_digits},
  {id: "wait", name: "Waiting for data", text: percent},
  {id: "speed", name: "Examples a second", text: three_digits},
];

function svg(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const name_of = ({note, run_id}) => note.split("\n")[0] || run_id;
const day_of = ({start}) => (start ? new Date(start).toLocaleDateString("en-CA") : "");

// The chart of one number. The last value stands beside its name.
function chart_of({id, name, text}, trainings) {
  const known = trainings.map((training, index) => ({training, index, value: training[id]})).filter(({value}) => value !== null);
  if (!known.length) return [];
  const values = known.map(({value}) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = index => EDGE + (WIDTH - 2 * EDGE) * (trainings.length > 1 ? index / (trainings.length - 1) : 0.5);
  const y = value => HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (high > low ? (value - low) / (high - low) : 0.5);
  const path = known.map(({index, value}, number) => `${number ? "L" : "M"}${x(index).toFixed(1)},${y(value).toFixed(1)}`).join("");
  const points = known.map(({training, index, value}) => {
    const is_worse = id in training.worse;
    const title = svg("title", {}, `${name_of(training)}, ${day_of(training)}: ${text(value)}`);
    return svg("circle", {cx: x(index), cy: y(value), r: is_worse ? 2 * RADIUS : RADIUS, class: is_worse ? "worse" : ""}, title);
  });
  const [lowest, highest, last] = [low, high, values.at(-1)].map(text);
  const range = lowest !== highest ? `${lowest} to ${highest}` : known.length > 1 ? "unchanged" : "";
  const label = `${name} of the last ${trainings.length} trainings: ${range ? `${range}, ` : ""}last ${last}`;
  const drawn = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label}, svg("path", {d: path}), ...points);
  return [element("figure", {class: "trend"},
    element("figcaption", {}, element("span", {}, name), element("strong", {}, last)), drawn,
    element("p", {class: "soft"}, range))];
}

function warning_of(training) {
  const badge = element("span", {class: "badge asked"}, "Worse than before");
  return element("li", {}, badge, " ", run_link(training, name_of(training)), `: ${Object.values(training.worse).join(" ")}`);
}

function numbers_of(trainings) {
  const known = CHARTS.filter(({id}) => trainings.some(training => training[id] !== null));
  const head = ["Run", "Started", ...known.map(({name}) => name)];
  const rows = [...trainings].reverse().map(training => [
    run_link(training, name_of(training)), day_of(training),
    ...known.map(({id, text}) => (training[id] === null ? "" : text(training[id]))),
  ]);
  return table(head, rows, "Trend in numbers");
}

// The section above the list. `choose` is called with the dataset name that the user selects.
export class Trend {
  constructor(name, choose) {
    this.name = name;
    this.requests = 0;
    this.shown = "";
    this.menu = element("select", {"aria-label": "Dataset of the trend"});
    this.menu.addEventListener("change", () => {
      this.name = this.menu.value;
      choose(this.name);
      this.refresh();
    });
    this.content = element("div");
    this.numbers = element("details", {class: "trend-numbers"}, element("summary", {}, "Numbers"));
    const head = element("div", {class: "head"}, element("h2", {}, "Trend of"), this.menu);
    this.element = element("section", {hidden: "", "aria-label": "Trend"}, head, this.content, this.numbers);
  }

  // Request the trend, and again after a minute. An error is left to the list, which has the same causes.
  async follow() {
    clearTimeout(this.timer);
    try {
      if (!document.hidden) await this.refresh();
    } finally {  // As in the list.
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.follow(), EVERY_MS);
    }
  }

  async refresh() {
    const number = ++this.requests;
    let answer;
    try {
      answer = await request_json(`trend.json?${new URLSearchParams({dataset_name: this.name})}`);
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      return;
    }
    if (number !== this.requests) return;
    this.show(answer);
    // For each request, the server reads a part of the trainings.
    if (answer.later) setTimeout(() => number === this.requests && this.refresh(), CONTINUE_MS);
  }

  show(answer) {
    const shown = JSON.stringify(answer);
    if (shown === this.shown) return;  // An open menu or table stays as it is.
    this.shown = shown;
    const {names, trainings} = answer;
    this.element.hidden = !names.length;
    this.menu.replaceChildren(...names.map(name => element("option", {value: name}, name)));
    this.menu.value = answer.shown;
    // A single point is no trend, but the menu stays, because other datasets have one.
    const charts = trainings.length < 2 ? [] : CHARTS.flatMap(chart => chart_of(chart, trainings));
    const marked = trainings.filter(({worse}) => Object.keys(worse).length).reverse();
    const [begin, end] = [trainings[0], trainings.at(-1)].map(training => day_of(training ?? {}));
    const days = begin === end ? `on ${begin}` : `from ${begin} to ${end}`;
    const first = trainings.length < 2 ? "It has one complete training. From the second one on, the trend appears here." :
      `The last ${trainings.length} complete trainings, ${days}.`;
    this.content.replaceChildren(
      element("p", {class: "soft"}, first), element("div", {class: "trends"}, ...charts),
      ...(answer.promises ? [element("p", {}, answer.promises)] : []),
      ...(marked.length ? [element("ul", {class: "warnings"}, ...marked.map(warning_of))] : []),
    );
    this.numbers.replaceChildren(this.numbers.firstChild, numbers_of(trainings));
  }
}
