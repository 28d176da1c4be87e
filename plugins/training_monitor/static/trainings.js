// All trainings, the newest first. Two that are chosen are laid beside each other.
import {NAMES, Refused, ask, dag_link, element, follow_looks, run_link} from "./monitor.js";

const EVERY_MS = 15000, PAGE = 100, MOST = 1000;

const percent = share => (share === null ? "" : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}%`);
const accuracy = share => (share === null ? "" : `${(100 * share).toFixed(1)}%`);
const started = start => (start ? new Date(start).toLocaleString("sv-SE") : "");  // 2026-01-31 12:00:00, as Airflow has it

// What is shown of a training: the words of a cell, by which it is found too, and what it is sorted by.
const COLUMNS = [
  {name: "Run", words: row => row.run_id, fill: row => run_link(row, row.run_id)},
  {name: "DAG", words: row => row.dag_id},
  {name: "State", words: row => `${NAMES[row.state]} ${row.words}`.trim(), fill: state_of},
  {name: "Started", words: row => started(row.start), by: row => row.start && Date.parse(row.start), newest: true},
  {name: "Data set", words: row => row.dataset},
  {name: "Model", words: row => row.model},
  {name: "Progress", words: row => percent(row.progress), by: row => row.progress, number: true, fill: progress_of},
  {name: "Validation accuracy", words: row => accuracy(row.accuracy), by: row => row.accuracy, number: true, about: "of the best model so far"},
  {name: "Waiting for data", words: row => percent(row.wait), by: row => row.wait, number: true, about: "share of the step time; of the last minute while it trains"},
  {name: "Limited by", words: row => row.limit},
];

function state_of(row) {
  const badge = element("span", {class: `badge ${row.state}`}, NAMES[row.state]);
  return row.words ? element("div", {}, badge, element("p", {class: "soft"}, row.words)) : badge;
}

function progress_of(row) {
  if (row.progress === null || row.progress === 1) return percent(row.progress);
  const bar = element("progress", {max: 1, value: row.progress, "aria-hidden": "true"});
  return element("div", {}, percent(row.progress), bar);
}

const key_of = ids => JSON.stringify([ids.dag_id, ids.run_id]);

// A line of the table, which stays while what it shows changes.
class Line {
  constructor(row, chosen, choose) {
    this.box = element("input", {type: "checkbox", "aria-label": `choose ${row.run_id} of ${row.dag_id}`});
    this.box.checked = chosen;
    this.box.addEventListener("change", () => choose(this.row, this.box.checked));
    this.cells = COLUMNS.map(({number}, index) => element(index ? "td" : "th", index ? (number ? {class: "number"} : {}) : {scope: "row"}));
    this.element = element("tr", {}, element("td", {}, this.box), ...this.cells);
    this.shown = [];
    this.show(row);
  }

  show(row) {
    this.row = row;
    COLUMNS.forEach(({words, fill}, index) => {
      if (this.shown[index] === words(row)) return;
      this.shown[index] = words(row);
      this.cells[index].replaceChildren(fill ? fill(row) : words(row));
    });
  }

  has(terms) {
    const text = this.shown.join(" ").toLowerCase();
    return terms.every(term => text.includes(term));
  }
}

class Trainings {
  constructor(place, chosen) {
    this.lines = new Map();
    this.chosen = new Map(chosen.map(ids => [key_of(ids), ids]));
    this.sorted = {column: COLUMNS.find(column => column.newest), up: false};
    this.build(place);
    this.say_chosen();
  }

  build(place) {
    this.search = element("input", {type: "search", placeholder: "Search all columns", "aria-label": "Search all columns"});
    this.search.addEventListener("input", () => this.arrange());
    this.beside = element("button", {type: "button", "aria-describedby": "chosen"}, "Beside each other");
    this.beside.addEventListener("click", () => this.lay_beside());
    this.hint = element("span", {class: "soft", id: "chosen", role: "status"});
    this.count = element("span", {class: "soft count", role: "status"});
    this.alert = element("p", {class: "verdict", role: "alert", hidden: ""});
    this.empty = element("div", {class: "empty", hidden: ""});
    this.older = element("button", {type: "button", hidden: ""}, "Show older ones");
    this.older.addEventListener("click", () => this.show_older());
    this.body = element("tbody");
    this.heads = COLUMNS.map(column => this.head(column));
    const head = element("thead", {}, element("tr", {}, element("td"), ...this.heads));
    this.table = element("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Trainings"}, element("table", {class: "list"}, head, this.body));
    this.tools = element("div", {class: "tools"}, this.search, this.beside, this.hint, this.count);
    place.append(element("h1", {}, "Training monitor"), this.tools, this.alert, this.table, this.empty, this.older);
  }

  head(column) {
    const button = element("button", {type: "button"}, column.name);
    button.addEventListener("click", () => this.sort_by(column));
    const made = element("th", {scope: "col", ...(column.number ? {class: "number"} : {})}, button);
    if (column.about) made.title = column.about;
    return made;
  }

  // Numbers begin with the highest, texts with A.
  sort_by(column) {
    this.sorted = {column, up: this.sorted.column === column ? !this.sorted.up : !column.by};
    this.arrange();
  }

  // Ask for all that is shown again, since what trains moves on.
  async refresh() {
    await this.take({limit: Math.min(MOST, Math.max(PAGE, this.lines.size))}, Infinity);
  }

  async show_older() {
    this.older.disabled = true;
    const before = Math.min(...this.numbers());
    await this.take({limit: PAGE, before}, before);
    this.older.disabled = false;
  }

  numbers() {
    return [...this.lines.values()].map(line => line.row.number);
  }

  // The rows of an answer replace all from below `before` on down to its last one: what is not there any more goes.
  async take(query, before) {
    let found;
    try {
      found = await ask(`trainings.json?${new URLSearchParams(query)}`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.alert.textContent = error.message;
      this.alert.hidden = false;
      return;
    }
    this.alert.hidden = true;
    this.replace(found, before);
    this.arrange();
  }

  replace({rows, more}, before) {
    const last = more ? rows.at(-1).number : 0;
    const named = new Set(rows.map(key_of));
    for (const [key, {row}] of this.lines)
      if (row.number >= last && row.number < before && !named.has(key)) this.lines.delete(key);
    for (const row of rows) this.show(row);
    if (last <= Math.min(...this.numbers())) this.older.hidden = !more;
  }

  show(row) {
    const key = key_of(row);
    const line = this.lines.get(key);
    if (line) line.show(row);
    else this.lines.set(key, new Line(row, this.chosen.has(key), (...choice) => this.choose(...choice)));
  }

  // Put the lines that are looked for in order.
  arrange() {
    const terms = this.search.value.toLowerCase().split(/\s+/);
    const lines = [...this.lines.values()].filter(line => line.has(terms)).sort((one, other) => this.order(one.row, other.row));
    this.put(lines.map(line => line.element));
    this.heads.forEach((head, index) => {
      const sorted = COLUMNS[index] === this.sorted.column ? (this.sorted.up ? "ascending" : "descending") : "none";
      head.setAttribute("aria-sort", sorted);
    });
    this.say_how_many(lines.length);
  }

  // Whoever is in one of the lines with the keyboard stays there.
  put(elements) {
    const before = [...this.body.children];
    if (before.length === elements.length && before.every((element, index) => element === elements[index])) return;
    const focused = document.activeElement;
    this.body.replaceChildren(...elements);
    if (this.body.contains(focused)) focused.focus({preventScroll: true});
  }

  order(one, other) {
    const {column: {by, words}, up} = this.sorted;
    const [first, second] = [one, other].map(by ?? words);
    const missing = value => value === null || value === "";
    if (missing(first) || missing(second)) return missing(first) - missing(second) || other.number - one.number;
    const compared = by ? first - second : first.localeCompare(second);
    return (up ? compared : -compared) || other.number - one.number;
  }

  say_how_many(shown) {
    const all = this.lines.size;
    const words = shown === all ? `${all}` : `${shown} of ${all}`;
    this.set(this.count, `${words} training${all === 1 ? "" : "s"}`);
    this.table.hidden = this.tools.hidden = !all;
    this.empty.hidden = shown > 0;
    if (!all) this.empty.replaceChildren("No training yet: trigger ", dag_link("image_training", "image_training"), ", and it is listed here.");
    else if (!shown) this.empty.replaceChildren("No training has these words.");
  }

  choose(row, is_chosen) {
    const {dag_id, run_id} = row;
    if (is_chosen) this.chosen.set(key_of(row), {dag_id, run_id});
    else this.chosen.delete(key_of(row));
    this.say_chosen();
  }

  say_chosen() {
    const names = [...this.chosen.values()].map(ids => ids.run_id);
    this.beside.disabled = names.length !== 2;
    const words = {0: "Choose two of them.", 1: `Choose one more beside ${names[0]}.`, 2: names.join(" and ")};
    this.set(this.hint, words[names.length] ?? `${names.length} are chosen: choose two.`);
  }

  // Only what is new is said aloud.
  set(place, words) {
    if (place.textContent !== words) place.textContent = words;
  }

  lay_beside() {
    const [one, other] = this.chosen.values();
    location.assign(`run?${new URLSearchParams({...one, other_dag_id: other.dag_id, other_run_id: other.run_id})}`);
  }

  async follow() {
    clearTimeout(this.timer);
    if (!document.hidden) await this.refresh();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.follow(), EVERY_MS);
  }
}

follow_looks();
const query = new URLSearchParams(location.search);
const [dag_id, run_id] = [query.get("dag_id"), query.get("run_id")];
const trainings = new Trainings(document.getElementById("trainings"), dag_id && run_id ? [{dag_id, run_id}] : []);
trainings.follow();
document.addEventListener("visibilitychange", () => document.hidden || trainings.follow());
