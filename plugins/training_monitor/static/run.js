// The page of a run and its training.
import {Changes} from "./changes.js";
import {Chart} from "./chart.js";
import {Charts} from "./charts.js";
import {DAGS, RequestError, element, follow_theme, link, request_json, table} from "./monitor.js";
import {Source} from "./source.js";
import {stacked_bars} from "./stages.js";

const EVERY_MS = 5000, EVERY_MS_AFTER_END = 60000;
const ENDED = ["trained", "stopped", "failed", "none"];

class Training {
  // The browser has requested the `first` address together with the page, because a header of the page names it.
  constructor(ids, first, place, charts) {
    this.ids = ids;
    this.first_address = first;
    this.place = place;
    this.charts = charts;
    this.frames = "";
    this.shown = [];
    this.sources = new Map();
    this.settled = null;
    this.zoom = null;
    this.head = element("div");
    this.figures = element("div");
    place.append(this.head, charts.controls, this.figures);
    charts.on_zoom(() => this.take_zoom() && this.refresh_soon());
  }

  // Request what is new and show it. Return how long to wait until the next request, in ms.
  async refresh() {
    const zoom = this.zoom;
    let answer;
    try {
      answer = await this.request_data();
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      this.show_error(error.message);
      return EVERY_MS;
    }
    if (zoom !== this.zoom) return EVERY_MS;  // The user has zoomed since, and the next request is on its way.
    this.show_status(answer.status);
    this.place.setAttribute("data-state", answer.status.state);
    if (answer.columns) await this.show_curves(answer);
    if (!this.zoom && this.take_zoom()) return 0;  // A part that the address names can be requested only now.
    return ENDED.includes(answer.status.state) ? EVERY_MS_AFTER_END : EVERY_MS;
  }

  request_data() {
    const part = this.zoom ? {start: this.zoom[0], end: this.zoom[1]} : this.settled === null ? {} : {after: this.settled};
    const address = this.first_address ?? `data?${new URLSearchParams({...this.ids, ...part, shown: this.frames})}`;
    this.first_address = null;
    return request_json(address);
  }

  show_error(words) {
    this.error ??= element("p", {class: "verdict", role: "alert"});
    this.error.textContent = words;
    this.place.prepend(this.error);
  }

  show_status(status) {
    this.error?.remove();
    if (!status.title && !status.tiles) {
      const links = (status.links ?? []).map(([words, address]) => link(address, words));
      this.head.replaceChildren(element("p", {class: "empty"}, status.words), element("nav", {class: "links"}, ...links, ...this.again()));
      this.title = null;  // The head is built again once there is a training to show.
      return;
    }
    if (!this.title) this.build_head();
    this.title.textContent = status.title;
    this.badge.textContent = status.name;
    this.badge.className = `badge ${status.state}`;
    this.words.textContent = status.words;
    this.bar.hidden = status.progress === null;
    this.bar.value = status.progress ?? 0;
    this.verdict.textContent = status.verdict;
    this.verdict.hidden = !status.verdict;
    this.show_promotion(status.promotion);
    this.tiles.replaceChildren(...status.tiles.map(([words, number]) =>
      element("div", {}, element("dt", {}, words), element("dd", {}, number))));
    this.examples.textContent = status.examples;
    this.changes.show(status.changes);
    this.show_links(status.links);
    this.show_facts(status.facts);
    this.sentences = status.sentences;
    this.tables = status.tables;
    this.stages = status.bars;
  }

  build_head() {
    this.promotion_shown = this.links_shown = this.facts_shown = null;
    this.title = element("h1");
    this.badge = element("span", {class: "badge", role: "status"});
    this.words = element("span", {class: "soft"});
    this.bar = element("progress", {max: 1, "aria-label": "share of the steps that are done"});
    this.verdict = element("p", {class: "verdict", role: "status"});  // A screen reader announces it, once a minute.
    this.promotion = element("p", {class: "soft", role: "status"});
    this.tiles = element("dl", {class: "tiles"});
    this.examples = element("p", {class: "soft"});
    this.changes = new Changes(this.ids, () => this.refresh_soon());
    this.links = element("nav", {class: "links", "aria-label": "Other pages of this run"});
    this.facts = element("div");
    this.head.replaceChildren(
      element("div", {class: "head"}, this.title, this.badge, this.words), this.bar, this.verdict, this.promotion,
      this.tiles, this.examples, this.changes.element, this.links, element("details", {}, element("summary", {}, "Settings and folders"), this.facts),
    );
  }

  // Replace the badge only if it changes, because a screen reader announces each change.
  show_promotion(promotion) {
    const shown = JSON.stringify(promotion);
    if (this.promotion_shown === shown) return;
    this.promotion_shown = shown;
    const {outcome, name, reason} = promotion ?? {};
    this.promotion.replaceChildren(...(promotion ? [element("span", {class: `badge ${outcome}`}, name), ` ${reason}`] : []));
  }

  // Replace the links only if they change, so that the keyboard focus stays on a link.
  show_links(links) {
    if (this.links_shown === JSON.stringify(links)) return;
    this.links_shown = JSON.stringify(links);
    const beside = element("a", {href: `trainings?${new URLSearchParams(this.ids)}`}, "Compare with another run");
    this.links.replaceChildren(...links.map(([words, address]) => link(address, words)), beside, ...this.again());
  }

  // Replace the facts only if they change, so that a person can select a path.
  show_facts(facts) {
    if (this.facts_shown === JSON.stringify(facts)) return;
    this.facts_shown = JSON.stringify(facts);
    this.facts.replaceChildren(table(["", ""], facts, "Settings and folders"));
  }

  // The link to the page that starts a run with the settings of this one, if that page starts runs of its DAG.
  again() {
    if (!Object.values(DAGS).includes(this.ids.dag_id)) return [];
    return [element("a", {href: `start?${new URLSearchParams(this.ids)}`}, "Start another one like this")];
  }

  async show_curves(answer) {
    const run = {start: answer.start, steps_per_epoch: answer.steps_per_epoch};
    for (const [name, columns] of Object.entries(answer.columns)) this.sources.set(name, new Source(columns, run));
    for (const [name, columns] of Object.entries(answer.newer)) this.sources.set(name, this.extended(name, columns, answer.after, run));
    this.settled = answer.settled;
    this.frames = answer.frames;
    if (answer.figures) await this.build(answer.figures);
    this.show_numbers();
    this.charts.show_rows(["samples", "batches", "epochs"].flatMap(name => this.sources.get(name) ?? []));
    if (answer.figures) for (const {name, section} of this.shown) {
      section.setAttribute("data-drawn", "");
      performance.mark(`${name} drawn`);
    }
  }

  // Keep the rows of a source up to `after`, and replace the rest.
  extended(name, columns, after, run) {
    const before = this.sources.get(name).columns, kept = before.time.findLastIndex(time => time <= after) + 1;
    const rows = key => before[key]?.subarray(0, kept) ?? new Float64Array(kept).fill(NaN);
    return new Source(Object.fromEntries(Object.entries(columns).map(([key, values]) => [key, [...rows(key), ...values]])), run);
  }

  // Replace the figures. The numbers are visible before the charts are drawn.
  async build(figures) {
    this.charts.remove(this.shown.flatMap(({drawn}) => drawn));
    this.shown = figures.map(figure => this.section(figure));
    this.figures.replaceChildren(...this.shown.map(({section}) => section));
    this.shown.flatMap(({drawn}) => drawn).forEach(chart => this.charts.add(chart));
    this.show_numbers();
    await next_frame();
    performance.mark("numbers shown");  // benchmarks/plugin.py reads these
  }

  show_numbers() {
    for (const section of this.shown) {
      const {name, sentence, numbers, plots} = section;
      sentence.textContent = this.sentences[name] ?? "";
      const {head, rows} = this.tables[name] ?? {rows: []}, shown = JSON.stringify(rows);
      numbers.hidden = !rows.length;
      // Only if they change, so that a person can select a number and scroll.
      if (rows.length && section.numbers_shown !== shown) numbers.replaceChildren(numbers.firstChild, table(head, rows, `${name} in numbers`));
      section.numbers_shown = shown;
      if (name === "stages") plots.replaceChildren(...stacked_bars(this.stages));
    }
  }

  section({name, title, charts}) {
    const sentence = element("p");
    const numbers = element("details", {}, element("summary", {}, "Numbers"));
    const drawn = charts.map((each, chart) => new Chart(each, `${name}-${chart}`, this.charts, source => this.sources.get(source)));
    const plots = element("div", {class: "plots"}, ...drawn.map(chart => chart.element));
    const section = element("section", {}, element("h2", {}, title), sentence, plots, numbers);
    return {name, drawn, sentence, numbers, plots, section};
  }

  // Have the next request bring the part that is shown in full resolution, or the whole. Return whether it is another.
  take_zoom() {
    const zoom = this.charts.shown_time();
    if (String(zoom) === String(this.zoom)) return false;
    this.zoom = zoom;
    this.settled = null;
    return true;
  }

  refresh_soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh_and_wait(), 0);
  }

  // An error must not end the refreshing. The console shows it.
  async refresh_and_wait() {
    let pause = EVERY_MS;
    try {
      if (!document.hidden) pause = await this.refresh();
    } finally {
      this.wait(pause);
    }
  }

  wait(milliseconds) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh_soon(), milliseconds);
  }
}

const next_frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));

const query = new URLSearchParams(location.search);
const ids = {dag_id: query.get("dag_id"), run_id: query.get("run_id")};
const place = element("article", {"aria-label": `${ids.dag_id}, ${ids.run_id}`});
document.getElementById("run").append(place);
const charts = new Charts(ids.run_id);
const training = new Training(ids, `data${location.search}`, place, charts);
follow_theme(() => charts.draw());
training.refresh_and_wait();
