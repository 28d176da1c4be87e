// A training while it goes on. Two of them lie beside each other where the address names a second one.
import {NAMES, Refused, ask, element, follow_looks, link, run_link, table} from "./monitor.js";

const EVERY_MS = 5000, AT_REST_MS = 60000, LOOK_MS = 300;
const OVER = ["trained", "stopped", "none", "unknown"];

class Training {
  constructor(ids, place, number) {
    this.ids = ids;
    this.place = place;
    this.number = number;
    this.frames = this.document = null;
    this.columns = {};
    this.settled = null;
    this.closer = null;
    this.head = element("div");
    this.figures = element("div");
    place.append(this.head, this.figures);
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
    if (found.columns) await this.show_curves(found);
    this.place.setAttribute("data-state", found.status.state);
    return OVER.includes(found.status.state) ? AT_REST_MS : EVERY_MS;
  }

  async ask_data() {
    const found = await ask("data", {...this.ids, ...this.asked()});
    if (!found.columns || found.frames === this.frames || found.after === null) return found;
    this.settled = null;  // other curves than before: they are needed from their beginning
    return ask("data", {...this.ids, ...this.asked()});
  }

  asked() {
    if (this.closer) return {start: this.closer[0], end: this.closer[1]};
    return this.settled === null ? {} : {after: this.settled};
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
    this.badge.textContent = NAMES[status.state];
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
    if (found.frames !== this.frames) {
      await this.draw_frames();
      this.frames = found.frames;
    }
    for (const [name, columns] of Object.entries(found.columns)) this.take(name, columns, found.after);
    this.settled = found.settled;
    for (const {name, sentence, numbers, plots} of this.shown) {
      sentence.textContent = this.sentences[name] ?? "";
      plots.setAttribute("aria-label", sentence.textContent);
      const {head, rows} = this.tables[name] ?? {rows: []};
      numbers.hidden = !rows.length;
      if (rows.length) numbers.replaceChildren(numbers.firstChild, table(head, rows, `${name} in numbers`));
    }
  }

  // What was settled before stays, where that was asked for; the rest is replaced.
  take(name, columns, after) {
    const before = this.columns[name];
    if (before && "time" in columns && after !== null) {
      const last = before.time.findLastIndex(time => time !== null && time <= after) + 1;
      columns = Object.fromEntries(Object.entries(columns).map(([key, values]) => [key, [...before[key].slice(0, last), ...values]]));
    }
    this.columns[name] = columns;
    const source = this.document?.get_model_by_name(name);
    if (!source) return;
    const rows = Object.values(columns)[0].length;
    const numbers = values => values.map(value => value ?? NaN);
    // The figures may be newer than the numbers, and draw a column that these have not yet.
    const missing = Object.keys(source.data).filter(key => !(key in columns)).map(key => [key, Array(rows).fill(NaN)]);
    source.data = Object.fromEntries([...missing, ...Object.entries(columns).map(([key, values]) => [key, numbers(values)])]);
  }

  async draw_frames() {
    const {figures, embedded} = await ask("figures", this.ids);
    this.shown = figures.map(figure => this.section(figure));
    this.figures.replaceChildren(...this.shown.map(each => each.section));
    if (!figures.length) return;  // nothing was measured yet
    for (const item of embedded.render)
      for (const id of Object.keys(item.roots)) item.roots[id] = this.place_of(item.roots[id]);
    const views = await Bokeh.embed.embed_items(embedded.documents, embedded.render);
    this.document = views[0].roots[0].model.document;
    this.follow_range(this.document.get_model_by_name("time"));
  }

  section({name, title, plots}) {
    const sentence = element("p");
    const numbers = element("details", {}, element("summary", {}, "Numbers"));
    const places = plots.map(plot => element("div", {id: this.place_of(plot)}));
    const drawn = element("div", {class: "plots", role: "img"}, ...places);
    return {name, sentence, numbers, plots: drawn, section: element("section", {}, element("h2", {}, title), sentence, drawn, numbers)};
  }

  place_of(plot) {
    return `${plot}-of-${this.number}`;
  }

  // Zoomed in, all that was measured is asked for; the reset button shows the whole again.
  follow_range(range) {
    range.change.connect(() => {
      clearTimeout(this.looking);
      this.looking = setTimeout(() => this.look(range), LOOK_MS);
    });
  }

  look(range) {
    const closer = range.have_updated_interactively ? [range.start, range.end] : null;
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

follow_looks();
const query = new URLSearchParams(location.search);
const all = [...named(query), ...named(query, "other_")];
const main = document.getElementById("runs");
main.classList.toggle("two", all.length > 1);
all.forEach((ids, number) => {
  const place = element("article", {"aria-label": `${ids.dag_id}, ${ids.run_id}`});
  main.append(place);
  if (all.length > 1) place.append(element("p", {class: "soft"}, `${ids.dag_id}: `, run_link(ids, ids.run_id)));
  new Training(ids, place, number).again();
});
