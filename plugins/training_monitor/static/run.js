// A training while it goes on. Two of them lie beside each other where the address names a second one.
import {Axes} from "./axes.js";
import {Refused, ask, element, follow_looks, link, run_link, soft_color, table} from "./monitor.js";

const EVERY_MS = 5000, AT_REST_MS = 60000, FEW = 8;
const OVER = ["trained", "stopped", "failed", "none", "unknown"];

class Training {
  // The browser began to ask for the `first` address with the page, whose header names it.
  constructor(ids, first, place, number, axes, on_described) {
    this.ids = ids;
    this.first = first;
    this.on_described = on_described;
    this.place = place;
    this.number = number;
    this.axes = axes;
    this.frames = "";
    this.shown = [];
    this.columns = {};
    this.settled = null;
    this.closer = null;
    this.head = element("div");
    this.figures = element("div");
    place.append(this.head, this.figures);
    axes.on_look(closer => this.look(closer));
  }

  // Ask for what is new and show it; how long to wait until the next time.
  async refresh() {
    const closer = this.closer;
    let found;
    try {
      found = await this.ask_data();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.say_refused(error.message);
      return EVERY_MS;
    }
    if (closer !== this.closer) return EVERY_MS;  // zoomed meanwhile: what it shows then is on its way
    this.show_status(found.status);
    this.place.setAttribute("data-state", found.status.state);
    if (found.columns) await this.show_curves(found);
    return OVER.includes(found.status.state) ? AT_REST_MS : EVERY_MS;
  }

  ask_data() {
    const part = this.closer ? {start: this.closer[0], end: this.closer[1]} : this.settled === null ? {} : {after: this.settled};
    const address = this.first ?? `data?${new URLSearchParams({...this.ids, ...part, shown: this.frames})}`;
    this.first = null;
    return ask(address);
  }

  say_refused(words) {
    this.refused ??= element("p", {class: "verdict", role: "alert"});
    this.refused.textContent = words;
    this.place.prepend(this.refused);
  }

  show_status(status) {
    this.refused?.remove();
    if (!status.title && !status.tiles) {
      const links = (status.links ?? []).map(([words, address]) => link(address, words));
      this.head.replaceChildren(element("p", {class: "empty"}, status.words), element("nav", {class: "links"}, ...links));
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
    this.promotion.textContent = status.promotion;
    this.tiles.replaceChildren(...status.tiles.map(([words, number]) =>
      element("div", {}, element("dt", {}, words), element("dd", {}, number))));
    this.show_links(status.links);
    this.facts.replaceChildren(table(["", ""], status.facts, "What is trained"));
    this.sentences = status.sentences;
    this.tables = status.tables;
    this.described = status.described;
    this.on_described();
  }

  build_head() {
    this.title = element("h1");
    this.badge = element("span", {class: "badge", role: "status"});
    this.words = element("span", {class: "soft"});
    this.bar = element("progress", {max: 1, "aria-label": "share of the steps that are done"});
    this.verdict = element("p", {class: "verdict", role: "status"});  // new each minute: worth saying aloud
    this.promotion = element("p", {class: "soft"});
    this.tiles = element("dl", {class: "tiles"});
    this.links = element("nav", {class: "links", "aria-label": "More of this run"});
    this.facts = element("div");
    this.head.replaceChildren(
      element("div", {class: "head"}, this.title, this.badge, this.words), this.bar, this.verdict, this.promotion,
      this.tiles, this.links, element("details", {}, element("summary", {}, "What is trained, and where"), this.facts),
    );
  }

  // Only when others come: whoever has reached a link with the keyboard stays on it.
  show_links(links) {
    if (this.linked === JSON.stringify(links)) return;
    this.linked = JSON.stringify(links);
    const beside = element("a", {href: `trainings?${new URLSearchParams(this.ids)}`}, "Beside another run");
    this.links.replaceChildren(...links.map(([words, address]) => link(address, words)), beside);
  }

  async show_curves(found) {
    for (const [name, columns] of Object.entries(found.columns)) this.take(name, columns, found.after);
    this.settled = found.settled;
    this.axes.reach(Math.max(...Object.values(this.columns).map(({time}) => time?.at(-1) ?? 0)));
    this.frames = found.frames;
    if (found.figures) await this.draw(found.figures).catch(error => this.draw_again(error));
    else this.drawn().forEach(document => this.fill(document));
    this.axes.fit();
    this.say_numbers();
  }

  // The documents of figures that there are views of.
  drawn() {
    return this.shown.flatMap(({parts}) => parts).flatMap(({document}) => document ?? []);
  }

  // What was settled before stays, where that was asked for; the rest is replaced.
  take(name, columns, after) {
    const before = this.columns[name];
    if (before && "time" in columns && after !== null) {
      const last = before.time.findLastIndex(time => time !== null && time <= after) + 1;
      columns = Object.fromEntries(Object.entries(columns).map(([key, values]) => [key, [...before[key].slice(0, last), ...values]]));
    }
    this.columns[name] = columns;
  }

  // One plot after the other, so that the first ones are seen while those further down are still drawn.
  async draw(figures) {
    for (const document of this.drawn()) {
      this.axes.remove(document);
      document.clear();
      Bokeh.documents.splice(Bokeh.documents.indexOf(document), 1);
    }
    const shown = this.shown = figures.map(figure => this.section(figure));
    this.figures.replaceChildren(...shown.map(each => each.section));
    this.say_numbers();
    await painted();
    performance.mark("numbers shown");  // benchmarks/plugin.py reads these
    await loaded;
    for (const {name, parts, section} of shown) {
      for (const part of parts) {
        if (shown !== this.shown) return;  // others came meanwhile
        await this.draw_part(part);
      }
      while (!parts.every(({document}) => document.is_idle)) await painted();
      section.setAttribute("data-drawn", "");
      performance.mark(`${name} drawn`);
    }
  }

  // What could not be drawn is brought once more by the next answer.
  draw_again(error) {
    this.frames = "";
    throw error;
  }

  async draw_part(part) {
    // Filled before it has views: each change after that would paint it again.
    part.document = Bokeh.require("document").Document.from_json(part.json);
    this.fill(part.document);
    color_words(part.document, soft_color());
    this.axes.add(part.document);
    this.axes.fit();
    const places = part.places.map(each => document.getElementById(this.place_of(each)));
    await Bokeh.embed.add_document_standalone(part.document, places[0], places);
    this.axes.fit();  // Bokeh may have set ranges of its own meanwhile
    await painted();
  }

  fill(document) {
    for (const [name, columns] of Object.entries(this.columns)) {
      const source = document.get_model_by_name(name);
      if (source) source.data = Object.fromEntries(Object.keys(source.data).map(key => [key, columns[key].map(value => value ?? NaN)]));
    }
  }

  say_numbers() {
    for (const {name, sentence, numbers, plots} of this.shown) {
      sentence.textContent = this.sentences[name] ?? "";
      plots.setAttribute("aria-label", sentence.textContent);
      const {head, rows} = this.tables[name] ?? {rows: []};
      numbers.hidden = !rows.length;
      if (rows.length) numbers.replaceChildren(numbers.firstChild, table(head, rows, `${name} in numbers`));
    }
  }

  section({name, title, documents}) {
    const sentence = element("p");
    const numbers = element("details", {}, element("summary", {}, "Numbers"));
    const plots = element("div", {class: "plots", role: "img"}, ...documents.flatMap(({places}) => places).map(each => element("div", {id: this.place_of(each)})));
    const section = element("section", {}, element("h2", {}, title), sentence, plots, numbers);
    return {name, parts: documents, sentence, numbers, plots, section};
  }

  place_of(plot) {
    return `${plot}-of-${this.number}`;
  }

  // Zoomed in, all that was measured is asked for; the reset button shows the whole again.
  look(closer) {
    if (String(closer) === String(this.closer)) return;
    this.closer = closer;
    this.settled = null;
    this.again();
  }

  again() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.turn(), 0);
  }

  // What goes wrong once, and is said on the console, must not leave the page as it is for ever.
  async turn() {
    let pause = EVERY_MS;
    try {
      if (!document.hidden) pause = await this.refresh();
    } finally {
      this.wait(pause);
    }
  }

  wait(milliseconds) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.again(), milliseconds);
  }
}

function named(query, before = "") {
  const [dag_id, run_id] = [query.get(`${before}dag_id`), query.get(`${before}run_id`)];
  return dag_id && run_id ? [{dag_id, run_id}] : [];
}

const loaded = new Promise(done => (window.Bokeh ? done() : addEventListener("DOMContentLoaded", done)));
const painted = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));

const query = new URLSearchParams(location.search);
const all = [...named(query), ...named(query, "other_")];
const main = document.getElementById("runs");
main.classList.toggle("two", all.length > 1);
const axes = new Axes(), between = element("section", {hidden: ""});
if (all.length > 1) main.append(between);
const trainings = all.map((ids, number) => {
  const place = element("article", {"aria-label": `${ids.dag_id}, ${ids.run_id}`});
  main.append(place);
  if (all.length > 1) place.append(element("p", {class: "soft"}, `${ids.dag_id}: `, run_link(ids, ids.run_id)));
  const first = all.length === 1 ? `data${location.search}` : null;
  return new Training(ids, first, place, number, axes, () => say_differences(trainings));
});
follow_looks(() => trainings.flatMap(training => training.drawn()).forEach(drawn => color_words(drawn, soft_color())));
trainings.forEach(training => training.turn());

// What two trainings were told differently; nothing beside one alone.
function say_differences(trainings) {
  const [one, other] = trainings.map(({described}) => described);
  const known = JSON.stringify([one, other]);
  if (!one || !other || known === between.known) return;  // folded or not by whoever reads it
  between.known = known;
  const all = Object.keys({...one, ...other}).map(name => [name, one[name] ?? "", other[name] ?? ""]);
  const rows = all.filter(([, first, second]) => first !== second);
  const heads = ["", ...trainings.map(({ids}) => ids.run_id)];
  const said = `What differs: ${rows.length ? `${rows.length} of ${all.length} settings and facts` : "nothing that was set"}`;
  const told = element("details", rows.length <= FEW ? {open: ""} : {}, element("summary", {}, said), table(heads, rows, "What differs"));
  between.replaceChildren(told);
  between.hidden = false;
}
