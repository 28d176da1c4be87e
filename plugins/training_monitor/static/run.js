// The page of a run and its training.
import {Axes} from "./axes.js";
import {RequestError, element, follow_theme, link, request_json, soft_color, table} from "./monitor.js";

const EVERY_MS = 5000, EVERY_MS_AFTER_END = 60000;
const ENDED = ["trained", "stopped", "failed", "none", "unknown"];

class Training {
  // The browser has requested the `first` address together with the page, because a header of the page names it.
  constructor(ids, first, place, axes) {
    this.ids = ids;
    this.first_address = first;
    this.place = place;
    this.axes = axes;
    this.frames = "";
    this.shown = [];
    this.columns = {};
    this.settled = null;
    this.zoom = null;
    this.head = element("div");
    this.figures = element("div");
    place.append(this.head, this.figures);
    axes.on_zoom(zoom => this.show_zoom(zoom));
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
    this.show_promotion(status.promotion);
    this.tiles.replaceChildren(...status.tiles.map(([words, number]) =>
      element("div", {}, element("dt", {}, words), element("dd", {}, number))));
    this.show_links(status.links);
    this.facts.replaceChildren(table(["", ""], status.facts, "Settings and folders"));
    this.sentences = status.sentences;
    this.tables = status.tables;
  }

  build_head() {
    this.title = element("h1");
    this.badge = element("span", {class: "badge", role: "status"});
    this.words = element("span", {class: "soft"});
    this.bar = element("progress", {max: 1, "aria-label": "share of the steps that are done"});
    this.verdict = element("p", {class: "verdict", role: "status"});  // A screen reader announces it, once a minute.
    this.promotion = element("p", {class: "soft", role: "status"});
    this.tiles = element("dl", {class: "tiles"});
    this.links = element("nav", {class: "links", "aria-label": "Other pages of this run"});
    this.facts = element("div");
    this.head.replaceChildren(
      element("div", {class: "head"}, this.title, this.badge, this.words), this.bar, this.verdict, this.promotion,
      this.tiles, this.links, element("details", {}, element("summary", {}, "Settings and folders"), this.facts),
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
    this.links.replaceChildren(...links.map(([words, address]) => link(address, words)), beside);
  }

  async show_curves(answer) {
    for (const [name, columns] of Object.entries(answer.columns)) this.update_columns(name, columns, answer.after);
    this.settled = answer.settled;
    this.axes.extend(Math.max(...Object.values(this.columns).map(({time}) => time?.at(-1) ?? 0)));
    this.frames = answer.frames;
    if (answer.figures) await this.draw(answer.figures).catch(error => this.draw_again(error));
    else this.documents().forEach(document => this.fill(document));
    this.axes.fit();
    this.show_numbers();
  }

  // The Bokeh documents that are drawn.
  documents() {
    return this.shown.flatMap(({parts}) => parts).flatMap(({document}) => document ?? []);
  }

  // Keep the rows up to `after`, and replace the rest. If `after` is null, replace all rows.
  update_columns(name, columns, after) {
    const before = this.columns[name];
    if (before && "time" in columns && after !== null) {
      const last = before.time.findLastIndex(time => time !== null && time <= after) + 1;
      columns = Object.fromEntries(Object.entries(columns).map(([key, values]) => [key, [...before[key].slice(0, last), ...values]]));
    }
    this.columns[name] = columns;
  }

  // Draw one plot after another, so that the first ones are visible while others are still being drawn.
  async draw(figures) {
    for (const document of this.documents()) {
      this.axes.remove(document);
      document.clear();
      Bokeh.documents.splice(Bokeh.documents.indexOf(document), 1);
    }
    const shown = this.shown = figures.map(figure => this.section(figure));
    this.figures.replaceChildren(...shown.map(each => each.section));
    this.show_numbers();
    await next_frame();
    performance.mark("numbers shown");  // benchmarks/plugin.py reads these
    await bokeh_loaded;
    for (const {name, parts, section} of shown) {
      for (const part of parts) {
        if (shown !== this.shown) return;  // Other figures have come since.
        await this.draw_part(part);
      }
      while (!parts.every(({document}) => document.is_idle)) await next_frame();
      section.setAttribute("data-drawn", "");
      performance.mark(`${name} drawn`);
    }
  }

  // Have the next answer bring the figures again, because they could not be drawn.
  draw_again(error) {
    this.frames = "";
    throw error;
  }

  async draw_part(part) {
    // Fill the document before it is shown, because each later change would paint it again.
    part.document = Bokeh.require("document").Document.from_json(part.json);
    this.fill(part.document);
    color_words(part.document, soft_color());
    this.axes.add(part.document);
    this.axes.fit();
    const places = part.places.map(each => document.getElementById(each));
    await Bokeh.embed.add_document_standalone(part.document, places[0], places);
    part.document.roots().forEach((plot, number) => settle_plot(plot, places[number]));
    this.axes.fit();  // Bokeh may have set ranges of its own.
    await next_frame();
  }

  fill(document) {
    for (const [name, columns] of Object.entries(this.columns)) {
      const source = document.get_model_by_name(name);
      if (source) source.data = Object.fromEntries(Object.keys(source.data).map(key => [key, columns[key].map(value => value ?? NaN)]));
    }
  }

  show_numbers() {
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
    const plots = element("div", {class: "plots", role: "img"}, ...documents.flatMap(({places}) => places).map(each => element("div", {id: each})));
    const section = element("section", {}, element("h2", {}, title), sentence, plots, numbers);
    return {name, parts: documents, sentence, numbers, plots, section};
  }

  // Request the zoomed part in full resolution, or the whole after a reset (null).
  show_zoom(zoom) {
    if (String(zoom) === String(this.zoom)) return;
    this.zoom = zoom;
    this.settled = null;
    this.refresh_soon();
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

const bokeh_loaded = new Promise(done => (window.Bokeh ? done() : addEventListener("DOMContentLoaded", done)));
const next_frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));

const query = new URLSearchParams(location.search);
const ids = {dag_id: query.get("dag_id"), run_id: query.get("run_id")};
const place = element("article", {"aria-label": `${ids.dag_id}, ${ids.run_id}`});
document.getElementById("run").append(place);
const training = new Training(ids, `data${location.search}`, place, new Axes());
follow_theme(() => training.documents().forEach(document => color_words(document, soft_color())));
training.refresh_and_wait();
