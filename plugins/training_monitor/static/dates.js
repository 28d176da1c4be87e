// The dates of a dataset: a calendar, the dates with problems, the commands for them, and all dates.
import {RequestError, element, follow_theme, page_link, request_json, scroller, table} from "./monitor.js";

// Marks of the states, so that no state is known by its color alone. They are those of the command `tenfold dates`.
const MARKS = {failed: "x", missing: "-", running: ".", outdated: "!", withdrawn: "w", drift: "~", published: "o", seen: "#"};
const DAYS = Array.from({length: 31}, (_, index) => index + 1);
const STEPS = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -31, ArrowDown: 31};

const unbroken = words => element("span", {class: "unbroken"}, words);
const span_of = ({first, last}) => element("span", {}, unbroken(first), ...(first === last ? [] : [" to ", unbroken(last)]));
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const two = number => String(number).padStart(2, "0");

// The menu of all datasets with dates. Another choice opens its page.
function menu_of({names, shown}) {
  const menu = element("select", {"aria-label": "Dataset"}, ...names.map((name, index) => {
    const place = name.publish_uri || name.workspace;
    const is_double = names.filter(each => each.dataset_name === name.dataset_name).length > 1;
    return element("option", {value: index}, name.dataset_name + (is_double ? ` in ${place}` : ""));
  }));
  menu.selectedIndex = shown ?? -1;
  menu.addEventListener("change", () => location.assign(`dates?${new URLSearchParams(names[menu.value])}`));
  return menu;
}

function summary_of({counts, published, dates, step, champion, note, trend}) {
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const each = step ? `, one per ${step}` : "";
  const model = champion || (note ? `unknown: ${note}` : "none, because no model has been promoted yet");
  return [
    element("p", {}, `${published.toLocaleString("en")} of ${counted(total, "date")} published, from ${dates[0].date} to ${dates.at(-1).date}${each}.`),
    element("p", {}, trend),
    element("p", {class: "soft"}, `Champion: ${model}`),
  ];
}

// A run that is older than those that were looked up may have made another dataset.
function limit_of({looked_up}) {
  return looked_up ? [element("p", {class: "soft"}, `Only the newest ${looked_up.toLocaleString("en")} runs were searched for datasets and for the last run of each date.`)] : [];
}

function legend_of({counts, states}) {
  return element("ul", {class: "legend", "aria-label": "Number of dates by state"}, ...Object.entries(counts).map(([state, count]) =>
    element("li", {}, element("span", {class: `day ${state}`, "aria-hidden": "true"}, MARKS[state]), ` ${states[state]}: ${count.toLocaleString("en")}`)));
}

// The days of all years, the newest year first. One day is in the order of the Tab key, and arrow keys move between days.
class Calendar {
  constructor({days, states}, show) {
    this.states = states;
    this.show = show;
    this.cells = new Map();
    const years = [...new Set(Object.keys(days).map(day => day.slice(0, 4)))].reverse();
    this.element = element("div", {}, ...years.map(year => this.year(year, days)));
    this.element.addEventListener("keydown", event => this.move(event));
    [...this.cells.values()].at(0)?.setAttribute("tabindex", "0");
  }

  year(year, days) {
    const months = [...new Set(Object.keys(days).filter(day => day.startsWith(year)).map(day => day.slice(0, 7)))];
    const head = element("tr", {}, element("td"), ...DAYS.map(day => element("th", {scope: "col"}, day)));
    const rows = months.map(month => element("tr", {}, element("th", {scope: "row"}, month), ...DAYS.map(day => this.cell(`${month}-${two(day)}`, days))));
    return scroller(`Calendar of ${year}`, element("table", {class: "calendar"}, element("caption", {}, year), element("thead", {}, head), element("tbody", {}, ...rows)));
  }

  cell(day, days) {
    const state = days[day];
    if (!state) return element("td");
    const words = `${day}: ${this.states[state]}`;
    const button = element("button", {type: "button", class: `day ${state}`, title: words, "aria-label": words, tabindex: "-1"}, MARKS[state]);
    button.addEventListener("click", () => this.show(day));
    this.cells.set(day, button);
    return element("td", {}, button);
  }

  move(event) {
    const places = [...this.element.querySelectorAll("tbody td")];
    const step = STEPS[event.key];
    const here = places.indexOf(event.target.closest("td"));
    if (!step || here < 0) return;
    event.preventDefault();
    for (let place = here + step; places[place]; place += step) {
      const next = places[place].firstElementChild;
      if (!next) continue;
      event.target.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      return next.focus();
    }
  }
}

const missing_badge = states => element("span", {class: "badge missing"}, states.missing);

function problems_of({dates, gaps, states}, state_of) {
  const rows = [
    ...dates.filter(each => each.words || ["failed", "outdated", "running", "withdrawn"].includes(each.state)).map(each => [each.date, [unbroken(each.date), state_of(each), each.words]]),
    ...gaps.map(gap => [gap.first, [span_of(gap), missing_badge(states), `no dataset of ${gap.dates === 1 ? "this date" : `these ${counted(gap.dates, "date")}`}`]]),
  ].sort(([one], [other]) => (one < other ? 1 : -1)).map(([, cells]) => cells);
  if (!rows.length) return [];
  return [element("section", {}, element("h2", {}, "Dates with problems"), table(["Date", "State", "Why"], rows, "Dates with problems"))];
}

function commands_section(title, label, dates, ...words) {
  if (!dates.length) return [];
  const commands = dates.map(each => each.command).reverse().join("\n");
  return [element("section", {}, element("h2", {}, title), ...words.filter(each => each).map(each => element("p", {}, each)),
    scroller(label, element("code", {}, commands), "pre"))];
}

function commands_of({dates, mends, mends_note, later, later_note}) {
  const unseen = `No run listed the source of a date after ${dates.at(-1).date}. If such dates should exist, find the cause, then run, newest dates first:`;
  return [
    ...commands_section("Build missing and failed dates", "Commands", mends, "Fix the causes above, then run, newest dates first:", mends_note),
    ...commands_section("Build dates after the newest one", "Commands for later dates", later, unseen, later_note),
    ...commands_section("Bring withdrawn dates back", "Commands for withdrawn dates", dates.filter(each => each.command), "To use them in windows again, run:"),
  ];
}

// All dates, one row each. The rows are made when the user opens them.
class Rows {
  constructor(answer, state_of) {
    this.answer = answer;
    this.state_of = state_of;
    this.rows = new Map();
    this.place = element("div");
    this.element = element("details", {}, element("summary", {}, "All dates"), this.place);
    this.element.addEventListener("toggle", () => this.fill());
  }

  fill() {
    if (this.rows.size) return;
    const {dates, gaps, runs, states, unit} = this.answer;
    const number = value => (value === null ? "" : value.toLocaleString("en"));
    const known = dates.map(each => [[each.date, each.date], [
      unbroken(each.date), this.state_of(each), unbroken(each.version), number(each.examples), number(each.rejected), each.drift === null ? "" : String(Number(each.drift.toFixed(2))),
      each.champion, this.run(runs[each.date], each),
    ]]);
    const missing = gaps.map(gap => [[gap.first, gap.last], [span_of(gap), element("span", {}, missing_badge(states), gap.dates === 1 ? "" : ` ${counted(gap.dates, "date")}`), "", "", "", "", "", ""]]);
    const rows = [...known, ...missing].sort(([[one]], [[other]]) => (one < other ? 1 : -1));
    const head = ["Date", "State", "Version", unit[0].toUpperCase() + unit.slice(1), "Rejected", "Drift", "Champion", "Last run"];
    this.place.replaceChildren(table(head, rows.map(([, cells]) => cells), "All dates"));
    [...this.place.querySelectorAll("tbody tr")].forEach((row, index) => this.rows.set(row, rows[index][0]));
  }

  run(run, {last_run}) {
    const at = last_run.replace("T", " ").replace("+00:00", " UTC");
    if (!run) return at;
    const [dag, id] = [run.dag_id, run.run_id].map(encodeURIComponent);
    return element("span", {class: "unbroken"}, page_link(`../dags/${dag}/runs/${id}`, run.state), ` ${at}`);
  }

  // Show the rows of a day, which may have several dates. Missing dates that follow each other have one row.
  show(day) {
    this.element.open = true;
    this.fill();
    const rows = [...this.rows].filter(([, [first, last]]) => first.slice(0, 10) <= day && day <= last.slice(0, 10)).map(([row]) => row);
    for (const row of this.rows.keys()) row.classList.toggle("chosen", rows.includes(row));
    const chosen = rows[0];
    chosen?.setAttribute("tabindex", "-1");
    chosen?.focus();
    chosen?.scrollIntoView({block: "center"});
  }
}

function show(place, answer) {
  const head = element("div", {class: "head"}, element("h1", {}, "Dates of a dataset"), ...(answer.names.length ? [menu_of(answer)] : []), element("a", {href: "trainings"}, "Trainings"));
  if (answer.words) {
    place.replaceChildren(head, element("p", {class: "verdict", role: "alert"}, answer.words), ...limit_of(answer));
    return;
  }
  const also_seen = ({state, champion}) => (state === "withdrawn" && champion === "seen" ? "; the champion was trained on it" : "");
  const state_of = date => element("span", {class: `badge ${date.state}`}, answer.states[date.state] + also_seen(date));
  const rows = new Rows(answer, state_of);
  const calendar = new Calendar(answer, day => rows.show(day));
  place.replaceChildren(head, ...summary_of(answer), ...limit_of(answer), legend_of(answer), calendar.element,
    ...problems_of(answer, state_of), ...commands_of(answer), rows.element);
}

follow_theme();
const place = document.getElementById("dates");
try {
  show(place, await request_json(`dates.json${location.search}`));
} catch (error) {
  if (!(error instanceof RequestError)) throw error;
  place.replaceChildren(element("h1", {}, "Dates of a dataset"), element("p", {class: "verdict", role: "alert"}, error.message));
}
