// The list of all trainings, page by page, the newest first. The user may choose some, to compare them.
import {keep_state, read_state} from "./address.js";
import {RequestError, element, follow_theme, link, page_link, request_json, run_link, scroller} from "./monitor.js";
import {Trend} from "./trend.js";

const EVERY_MS = 15000, PAGE = 100, SEARCH_MS = 300, CONTINUE_MS = 100;
const MAX_COMPARED = 20;
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

// The columns of the list. The server sends the text of each cell, and searches and sorts by it.
const COLUMNS = [
  {id: "run", name: "Run", about: "its note in Airflow, and its id", fill: run_of},
  {id: "state", name: "State", fill: state_of},
  {id: "user", name: "User", about: "who triggered the run; empty for a schedule"},
  {id: "dag", name: "DAG"},
  {id: "started", name: "Started", down: true, fill: row => parts_of(row.cells.started.split(" "))},
  {id: "dataset", name: "Dataset"},
  {id: "model", name: "Model"},
  {id: "progress", name: "Progress", number: true, down: true, fill: progress_of},
  {id: "accuracy", name: "Accuracy", number: true, down: true, about: "of the best model so far on the validation split; once complete, on the test split (the cell says test) if the dataset has one; of a regression, its mean absolute error (MAE); the baseline is that of a model without any input", fill: row => parts_of(row.cells.accuracy.split(/ (?=\()/))},
  {id: "promotion", name: "Promotion", about: "whether the model became the champion; open a badge to read why", fill: promotion_of},
  {id: "wait", name: "Waiting for data", number: true, down: true, about: "share of the step time; while it trains, of the last minute"},
  {id: "limit", name: "Limited by"},
];
const NEWEST_FIRST = {column: COLUMNS.find(({id}) => id === "started"), up: false};

function run_of(row) {
  const [name] = row.note.split("\n");
  return name ? element("div", {}, run_link(row, name), element("p", {class: "soft"}, row.run_id)) : run_link(row, row.run_id);
}

// Texts that share a line if there is room. Otherwise, each of them has one.
function parts_of(texts) {
  return element("div", {class: "parts"}, ...texts.flatMap(text => [" ", element("span", {class: "unbroken"}, text)]).slice(1));
}

function state_of(row) {
  const badge = element("span", {class: `badge ${row.state}`}, row.name);
  // Many rows have a link with the same words.
  const links = row.links.flatMap(([words, address]) => {
    const link = page_link(address, words);
    link.setAttribute("aria-label", `${words} of ${row.run_id}`);
    return [" ", link];
  });
  return element("div", {}, badge, ...links, ...(row.words ? [element("p", {class: "soft"}, row.words)] : []));
}

function promotion_of(row) {
  if (!row.promotion) return "";
  const badge = element("span", {class: `badge ${row.promotion}`}, row.badge);
  return element("details", {}, element("summary", {}, badge), element("p", {class: "soft"}, row.why));
}

function progress_of(row) {
  if (row.progress === null || row.progress === 1) return row.cells.progress;
  const bar = element("progress", {max: 1, value: row.progress, "aria-hidden": "true"});
  return element("div", {}, row.cells.progress, bar);
}

// What a search may contain.
function help_of_search() {
  const examples = [
    ["flowers resnet", "trainings that have both words in any column"],
    ['"larger images"', "a text with a blank"],
    ["dataset:flowers", "the column contains the text; = is the whole text, and != any other one"],
    ["accuracy>0.5 wait<5", "numbers, with <, <=, >, >=, = and !=; a share over 1 is a percentage, and 1 is 100%"],
    ["epochs>=10 batch_size=32", "any setting of the training, by its name in the settings reference"],
    ["started>=2026-11-01", "since a day; a month or a year also works"],
  ];
  const rows = examples.flatMap(([example, words]) => [element("dt", {}, element("code", {}, example)), element("dd", {}, words)]);
  const columns = `Columns: ${COLUMNS.map(({id}) => id).join(", ")}; error, the mean absolute error; and speed, the examples a second.`;
  return element("details", {}, element("summary", {}, "How to search"), element("dl", {class: "examples"}, ...rows), element("p", {class: "soft"}, columns));
}

const count_of = count => `${count.toLocaleString("en")} training${count === 1 ? "" : "s"}`;
const key_of = ids => JSON.stringify([ids.dag_id, ids.run_id]);

// A row of the table. Its element stays while its content changes.
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
    COLUMNS.forEach(({id, fill}, index) => {
      const shown = JSON.stringify([row.cells[id], id === "state" && row.links]);
      if (this.shown[index] === shown) return;
      this.shown[index] = shown;
      this.cells[index].replaceChildren(fill ? fill(row) : row.cells[id]);
    });
  }
}

class Trainings {
  constructor(place, chosen) {
    this.lines = new Map();
    this.chosen = new Map(chosen.map(ids => [key_of(ids), ids]));
    this.requests = 0;
    this.build(place);
    this.read_address();
    this.show_chosen();
  }

  // Show what the address says: the search, the order and the page.
  read_address() {
    const {search, sort, up, within, page} = read_state(["search", "sort", "up", "within", "page"]);
    const column = COLUMNS.find(({id}) => id === sort);
    this.search.value = search;
    this.within.checked = within === "true";
    this.sorted = {column: column ?? NEWEST_FIRST.column, up: Boolean(column) && up === "true"};
    this.offset = PAGE * Math.max(0, Number.parseInt(page || "1") - 1 || 0);
  }

  keep_address() {
    const {column, up} = this.sorted;
    const is_default = column === NEWEST_FIRST.column && up === NEWEST_FIRST.up;
    keep_state({
      search: this.search.value.trim(), sort: is_default ? "" : column.id, up: up ? "true" : "",
      within: this.within.checked ? "true" : "", page: this.offset ? 1 + this.offset / PAGE : "",
    });
  }

  build(place) {
    this.search = element("input", {type: "search", maxlength: 200, placeholder: "Words, or accuracy>0.5", "aria-label": "Search all columns"});
    this.search.addEventListener("input", () => this.search_soon());
    this.within = element("input", {type: "checkbox"});
    this.within.addEventListener("change", () => this.go_to(0));
    const within = element("label", {title: "sort by the name of the dataset first"}, this.within, " Within each dataset");
    this.compare = element("button", {type: "button", "aria-describedby": "chosen"}, "Compare");
    this.compare.addEventListener("click", () => link(this.comparison(), "").click());
    this.clear = element("button", {type: "button"}, "Clear selection");
    this.clear.addEventListener("click", () => this.clear_chosen());
    this.hint = element("span", {class: "soft", id: "chosen", role: "status"});
    this.count = element("span", {class: "soft count", role: "status"});
    this.filters = element("p", {class: "soft", role: "status", hidden: ""});
    this.alert = element("p", {class: "verdict", role: "alert", hidden: ""});
    this.empty = element("div", {class: "empty", hidden: ""});
    this.before = this.page_button("Previous", -PAGE);
    this.after = this.page_button("Next", PAGE);
    this.pages = element("nav", {class: "tools", "aria-label": "Pages", hidden: ""}, this.before, this.after);
    this.body = element("tbody");
    this.heads = COLUMNS.map(column => this.head(column));
    const head = element("thead", {}, element("tr", {}, element("td"), ...this.heads));
    this.table = scroller("Trainings", element("table", {class: "list"}, head, this.body));
    this.tools = element("div", {class: "tools"}, this.search, within, this.compare, this.clear, this.hint, this.count);
    const pages = [element("a", {href: "start"}, "Start a training"), element("a", {href: "dates"}, "Dates of a dataset")];
    const others = element("nav", {class: "links", "aria-label": "Other pages"}, ...pages);
    this.trend = new Trend(read_state(["trend"]).trend, trend => keep_state({trend}));
    this.help = help_of_search();
    place.append(element("h1", {}, "Training monitor"), others, this.trend.element, this.tools, this.help, this.filters, this.alert, this.table, this.empty, this.pages);
  }

  head(column) {
    const button = element("button", {type: "button"}, column.name);
    button.addEventListener("click", () => this.sort_by(column));
    const cell = element("th", {scope: "col", ...(column.number ? {class: "number"} : {})}, button);
    if (column.about) cell.title = column.about;
    return cell;
  }

  page_button(words, rows) {
    const button = element("button", {type: "button"}, words);
    button.addEventListener("click", () => this.go_to(this.offset + rows));
    return button;
  }

  go_to(offset) {
    this.offset = Math.max(0, offset);
    this.refresh();
  }

  // Numbers and times start with the highest value, texts with A.
  sort_by(column) {
    this.sorted = {column, up: this.sorted.column === column ? !this.sorted.up : !column.down};
    this.go_to(0);
  }

  // A search looks at all trainings, so it waits until the user stops typing.
  search_soon() {
    clearTimeout(this.searching);
    this.searching = setTimeout(() => this.go_to(0), SEARCH_MS);
  }

  // Request the current page of the list and show it.
  async refresh() {
    const number = ++this.requests;
    const {column: {id: sort}, up} = this.sorted;
    const within = this.within.checked;
    const query = {limit: PAGE, offset: this.offset, search: this.search.value.trim(), sort, up, within, zone: ZONE};
    this.keep_address();
    let answer;
    try {
      answer = await request_json(`trainings.json?${new URLSearchParams(query)}`);
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      this.alert.textContent = error.message;
      this.alert.hidden = false;
      return;
    }
    if (number !== this.requests) return;  // The user has requested another page or search since.
    this.alert.hidden = true;
    // There are fewer trainings than before. While some are still being read, their rows may come.
    if (!answer.rows.length && this.offset && !answer.later) return this.go_to(0);
    this.show_rows(answer, query.search);
    // For each request, the server reads a part of the trainings.
    if (answer.later) setTimeout(() => number === this.requests && this.refresh(), CONTINUE_MS);
  }

  show_rows({rows, more, ...counts}, search) {
    const lines = rows.map(row => [key_of(row), this.line(row)]);
    this.lines = new Map(lines);
    this.set_rows(lines.map(([, line]) => line.element));
    this.heads.forEach((head, index) => {
      const sorted = COLUMNS[index] === this.sorted.column ? (this.sorted.up ? "ascending" : "descending") : "none";
      head.setAttribute("aria-sort", sorted);
    });
    this.before.disabled = !this.offset;
    this.after.disabled = !more;
    this.pages.hidden = !this.offset && !more;
    this.show_counts(rows.length, counts, search);
  }

  line(row) {
    const line = this.lines.get(key_of(row));
    if (!line) return new Line(row, this.chosen.has(key_of(row)), (...choice) => this.choose(...choice));
    line.show(row);
    return line;
  }

  // Replace the rows of the table. The keyboard focus stays where it is.
  set_rows(elements) {
    const before = [...this.body.children];
    if (before.length === elements.length && before.every((element, index) => element === elements[index])) return;
    const focused = document.activeElement;
    this.body.replaceChildren(...elements);
    if (this.body.contains(focused)) focused.focus({preventScroll: true});
  }

  show_counts(shown, {found, total, searched, unread, later, filters, problem}, search) {
    const all = problem || found === total ? count_of(total) : `${found.toLocaleString("en")} of ${count_of(total)}`;
    const part = problem || !shown || shown === found ? "" : `${(this.offset + 1).toLocaleString("en")} to ${(this.offset + shown).toLocaleString("en")} of `;
    const limits = [
      ...(problem || searched === total || later ? [] : [`The newest ${searched.toLocaleString("en")} were searched.`]),
      ...(later ? [`${searched.toLocaleString("en")} were searched, and ${later.toLocaleString("en")} are still being read.`] : []),
      ...(unread ? [`The buckets of ${count_of(unread)} have not answered yet.`] : []),
    ];
    this.set_text(this.count, problem ? "" : [`${part}${all}.`, ...limits].join(" "));
    this.set_text(this.filters, filters.length ? `Filters: ${filters.join(", ")}.` : "");
    this.filters.hidden = !filters.length;
    this.table.hidden = !shown;
    this.tools.hidden = this.help.hidden = !total && !search;
    this.empty.hidden = shown > 0;
    if (!total) this.empty.replaceChildren("No trainings yet. ", element("a", {href: "start"}, "Start a training"), ".");
    else if (problem) this.empty.replaceChildren(problem);
    else if (!shown) this.empty.replaceChildren(["No trainings match your search.", ...limits].join(" "));
  }

  choose(row, is_chosen) {
    const {dag_id, run_id} = row;
    if (is_chosen) this.chosen.set(key_of(row), {dag_id, run_id});
    else this.chosen.delete(key_of(row));
    this.show_chosen();
  }

  clear_chosen() {
    this.chosen.clear();
    for (const {box} of this.lines.values()) box.checked = false;
    this.show_chosen();
    this.search.focus();  // The button has the focus, and is about to vanish.
  }

  // The selection is kept while the user pages and searches, so the words say how many trainings it has.
  show_chosen() {
    const count = this.chosen.size, [first] = this.chosen.values();
    this.compare.disabled = count < 2 || count > MAX_COMPARED;
    this.clear.hidden = !count;
    const words = {0: `Select 2 to ${MAX_COMPARED} trainings to compare them.`, 1: `Select another training to compare with ${first?.run_id}.`};
    const many = `${count} trainings are selected${count > MAX_COMPARED ? `: select at most ${MAX_COMPARED} to compare them` : ""}.`;
    this.set_text(this.hint, words[count] ?? many);
  }

  // Set a text only if it changes, because a screen reader announces each change.
  set_text(place, words) {
    if (place.textContent !== words) place.textContent = words;
  }

  // The address of the page that compares the chosen trainings.
  comparison() {
    const ids = [...this.chosen.values()].flatMap(({dag_id, run_id}) => [["dag_id", dag_id], ["run_id", run_id]]);
    return `compare?${new URLSearchParams(ids)}`;
  }

  async follow() {
    clearTimeout(this.timer);
    try {
      if (!document.hidden) await this.refresh();
    } finally {  // An error must not end the refreshing. The console shows it.
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.follow(), EVERY_MS);
    }
  }
}

follow_theme();
const query = new URLSearchParams(location.search);
const [dag_id, run_id] = [query.get("dag_id"), query.get("run_id")];
const trainings = new Trainings(document.getElementById("trainings"), dag_id && run_id ? [{dag_id, run_id}] : []);
trainings.follow();
trainings.trend.follow();
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  trainings.follow();
  trainings.trend.follow();
});
