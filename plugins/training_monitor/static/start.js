// The page that starts a training: the fields that people set first, checked while they type. Airflow's own API starts it.
import {keep_state, read_state} from "./address.js";
import {DAGS, RequestError, dag_link, element, follow_theme, is_off, request_json, run_link, send_json, set_off} from "./monitor.js";

const CHECK_MS = 300;
const MAX_RUNS = 20;
const REQUIRED = {source_uri: "such as /data/flowers", label_column: "the column to learn"};  // Fields without a default.
const MAY_NOT_SEE = [403, 404];
const DATED = /\{(date|year|month|day|hour|minute)\}/;
const SILENT = "Airflow does not answer, and the run may have started: look at the list of runs before you try again.";
const KINDS = {images: "Images", table: "A table"};
const dag_address = dag_id => `../api/v2/dags/${encodeURIComponent(dag_id)}`;
const is_equal = (one, other) => JSON.stringify(one ?? null) === JSON.stringify(other ?? null);

// The data date that the first task of a run fixed. Empty if there is none yet, or if the user may not see it.
async function data_date_of(dag_id, run_id) {
  try {
    const {value} = await request_json(`${dag_address(dag_id)}/dagRuns/${encodeURIComponent(run_id)}/taskInstances/extract/xcomEntries/settings`);
    return value.data_date;
  } catch (error) {
    if (!MAY_NOT_SEE.includes(error.status)) throw error;
    return "";
  }
}

// The forms of both DAGs, as Airflow describes them. A DAG that the user may not see is left out.
async function load_forms() {
  const loaded = await Promise.allSettled(Object.entries(DAGS).map(async ([kind, dag_id]) => {
    const {params, is_paused} = await request_json(`${dag_address(dag_id)}/details`);
    return {kind, dag_id, params, is_paused};
  }));
  const broken = loaded.find(({status, reason}) => status === "rejected" && !MAY_NOT_SEE.includes(reason.status));
  if (broken) throw broken.reason;
  const forms = loaded.filter(({status}) => status === "fulfilled").map(({value}) => value);
  if (!forms.length) throw loaded[0].reason;
  return forms;
}

// The fields that Airflow's form shows unfolded: those without a section.
const first_of = ({params}) => Object.keys(params).filter(name => !params[name].schema.section);

// All names of two lists, each after the name that is before it in its list.
function merged(one, other) {
  const names = [...one];
  other.forEach((name, index) => {
    if (!names.includes(name)) names.splice(names.indexOf(other[index - 1]) + 1, 0, name);
  });
  return names;
}

// A field of the form: its label, its input, the first sentence about it, and what is wrong with it.
class Field {
  constructor(name, {schema, description, value}, changed) {
    const types = [schema.type].flat();
    this.is_number = types.includes("integer") || types.includes("number");
    this.name = name;
    const ids = {hint: `${name}-hint`, problem: `${name}-problem`, list: `${name}-list`};
    this.input = element("input", {
      id: name, type: "text", autocomplete: "off", spellcheck: "false", placeholder: value || (REQUIRED[name] ?? "automatic"),
      "aria-describedby": `${ids.problem} ${ids.hint}`, ...(this.is_number ? {inputmode: "decimal"} : {list: ids.list}),
    });
    this.input.addEventListener("input", () => changed(this));
    this.input.addEventListener("blur", () => { this.is_touched ||= this.input.value !== ""; });
    this.choices = element("datalist", {id: ids.list});
    this.offer(schema.examples ?? []);
    this.problem = element("p", {class: "problem", id: ids.problem, role: "status"});
    this.extra = element("div");
    const hint = element("p", {class: "soft", id: ids.hint}, description.split(/(?<=\.)\s/)[0]);
    this.element = element("div", {class: "field"}, element("label", {for: name}, schema.title ?? name), this.input, this.choices, this.problem, this.extra, hint);
  }

  // The value as Airflow's form would send it; undefined if the field is empty. The server refuses what is no number.
  get value() {
    const text = this.input.value.trim();
    if (!text) return undefined;
    return this.is_number && Number.isFinite(Number(text)) ? Number(text) : text;
  }

  set value(value) {
    this.input.value = value ?? "";
    this.is_touched ||= this.input.value !== "";
  }

  offer(values) {
    this.choices.replaceChildren(...values.map(value => element("option", {value})));
  }

  // Show what is wrong. A sentence begins with the name of the setting, which the label already says.
  show_problem(sentence) {
    const rest = sentence.startsWith(`${this.name} `) ? sentence.slice(this.name.length + 1) : sentence;
    const words = rest && rest[0].toUpperCase() + rest.slice(1);
    if (this.problem.textContent !== words) this.problem.textContent = words;
    this.input.setAttribute("aria-invalid", String(Boolean(words)));
  }
}

class Start {
  constructor(place, forms) {
    this.forms = new Map(forms.map(form => [form.kind, form]));
    this.form = forms[0];
    this.others = {};  // Settings of the run that this one is like, apart from the fields.
    this.problems = {};
    this.checks = 0;
    this.changed = new Set();  // Fields that the user has changed since the last check.
    this.fields = new Map();
    for (const name of forms.map(first_of).reduce(merged)) {
      const {params} = forms.find(each => name in each.params && !each.params[name].schema.section);
      this.fields.set(name, new Field(name, params[name], field => this.change(field)));
    }
    this.build(place);
    this.show_form();
  }

  build(place) {
    this.kinds = new Map([...this.forms.keys()].map(kind => {
      const radio = element("input", {type: "radio", name: "kind", value: kind});
      radio.addEventListener("change", () => { this.is_kind_chosen = true; this.choose_kind(kind); return this.check(); });
      return [kind, radio];
    }));
    const labels = [...this.kinds].map(([kind, radio]) => element("label", {}, radio, ` ${KINDS[kind]}`));
    const kinds = element("fieldset", {}, element("legend", {}, "Learn from"), ...labels);
    this.runs = element("select", {id: "like"});
    this.runs.addEventListener("change", () => this.choose_run(this.runs.value));
    const like = element("div", {class: "field"}, element("label", {for: "like"}, "Same as run"), this.runs);
    this.look = element("p", {class: "look"});
    this.meant = element("button", {type: "button", hidden: ""});
    this.meant.addEventListener("click", () => this.take_meant());
    this.fields.get("source_uri").extra.append(element("div", {role: "status"}, this.look, this.meant));
    this.rest = element("div");
    this.paused = element("p", {class: "verdict", hidden: ""}, "The DAG is paused: a run waits until somebody unpauses it.");
    this.alert = element("p", {class: "verdict", role: "alert", hidden: ""});
    this.button = element("button", {type: "submit", class: "main"}, "Start");
    this.all = element("p", {class: "soft"});
    const fields = element("div", {class: "fields"}, ...[...this.fields.values()].map(field => field.element));
    const form = element("form", {novalidate: ""}, element("div", {class: "fields"}, kinds, like), fields, this.rest, this.paused, this.alert, element("div", {class: "tools"}, this.button), this.all);
    form.addEventListener("submit", event => { event.preventDefault(); this.start(); });
    const pages = element("nav", {class: "links", "aria-label": "Other pages"}, element("a", {href: "trainings"}, "Trainings"));
    place.append(element("h1", {}, "Start a training"), pages, form);
  }

  choose_kind(kind) {
    this.form = this.forms.get(kind);
    this.others = {};
    this.keep_address("");
    this.show_form();
    return this.load_runs();
  }

  // Without an address, the page shows the first kind.
  keep_address(run_id) {
    const is_default = !run_id && this.form === [...this.forms.values()][0];
    keep_state({dag_id: is_default ? "" : this.form.dag_id, run_id});
  }

  show_form() {
    const names = first_of(this.form);
    for (const [name, field] of this.fields) field.element.hidden = !names.includes(name);
    for (const [kind, radio] of this.kinds) radio.checked = kind === this.form.kind;
    this.paused.hidden = !this.form.is_paused;
    this.all.replaceChildren("All settings are in Airflow's form: open ", dag_link(this.form.dag_id, this.form.dag_id), " and select Trigger.");
    this.show_others();
  }

  // The newest runs of the DAG, to start another one like them.
  async load_runs() {
    const {dag_id} = this.form;
    const query = new URLSearchParams({limit: MAX_RUNS, order_by: "-run_after"});
    let dag_runs = [];
    try {
      ({dag_runs} = await request_json(`${dag_address(dag_id)}/dagRuns?${query}`));
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      this.say(error.message);
    }
    if (dag_id !== this.form.dag_id) return;
    this.confs = new Map(dag_runs.map(run => [run.dag_run_id, run.conf ?? {}]));
    const name_of = ({dag_run_id, conf, note}) => [note?.split("\n")[0], conf?.dataset_name, dag_run_id].filter(each => each).join(" · ");
    this.runs.replaceChildren(element("option", {value: ""}, "none"), ...dag_runs.map(run => element("option", {value: run.dag_run_id}, name_of(run))));
    for (const name of ["source_uri", "dataset_name"]) {
      this.fields.get(name).offer([...new Set(dag_runs.map(({conf}) => conf?.[name]).filter(each => each))]);
    }
  }

  async choose_run(run_id) {
    try {
      await this.take_run(run_id);
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      this.say(error.message);
    }
  }

  async take_run(run_id) {
    const {dag_id, params} = this.form;
    this.keep_address(run_id);
    if (run_id && !this.confs.has(run_id)) {
      const {conf} = await request_json(`${dag_address(dag_id)}/dagRuns/${encodeURIComponent(run_id)}`);
      this.confs.set(run_id, conf ?? {});
      this.runs.append(element("option", {value: run_id}, run_id));
    }
    this.runs.value = run_id;
    const conf = {...this.confs.get(run_id)};
    // The form of a scheduled run leaves the date to the run, and a new run would take that of today.
    if (run_id && !conf.data_date && DATED.test(conf.source_uri ?? params.source_uri.value)) {
      conf.data_date = await data_date_of(dag_id, run_id);
      if (this.runs.value !== run_id) return;  // The user has chosen another run since.
    }
    const changed = Object.entries(conf).filter(([name, value]) => name in params && value !== null && !is_equal(value, params[name].value));
    const names = first_of(this.form);
    for (const [name, field] of this.fields) field.value = changed.find(([each]) => each === name)?.[1];
    this.others = Object.fromEntries(changed.filter(([name]) => !names.includes(name)));
    this.show_others();
    await this.check();
  }

  show_others() {
    const names = Object.keys(this.others);
    const items = names.map(name => element("li", {}, element("code", {}, `${name} = ${JSON.stringify(this.others[name])}`)));
    this.rest.replaceChildren(...(names.length ? [element("p", {}, "Also as in this run:"), element("ul", {}, ...items)] : []));
  }

  // The settings that differ from the defaults of the DAG.
  conf() {
    const own = first_of(this.form).map(name => [name, this.fields.get(name).value]).filter(([, value]) => value !== undefined);
    return {...this.others, ...Object.fromEntries(own)};
  }

  change(field) {
    clearTimeout(this.checking);
    if (field.name === "source_uri") this.show_look(null);
    this.changed.add(field);
    this.checking = setTimeout(() => this.check(), CHECK_MS);
  }

  // Ask the server what is wrong, and what is at the source. Return whether the answer is of the current form.
  async check() {
    clearTimeout(this.checking);
    for (const field of this.changed) field.is_touched = true;
    this.changed.clear();
    const number = ++this.checks, {dag_id, params} = this.form;
    const defaults = Object.fromEntries(Object.entries(params).map(([name, {value}]) => [name, value]));
    try {
      const answer = await send_json(`start.json?${new URLSearchParams({dag_id})}`, {...defaults, ...this.conf()}, `You do not have permission to start runs of ${dag_id}.`);
      if (number !== this.checks) return false;
      this.say("");
      return await this.show(answer);
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      if (number === this.checks) this.say(error.message);
      return false;
    }
  }

  async show({problems, source, dataset_name}) {
    const kind = source?.kind;
    if (kind && kind !== this.form.kind && this.forms.has(kind) && !this.is_kind_chosen) {
      await this.choose_kind(kind);
      return this.check();
    }
    this.problems = problems;
    this.show_problems();
    this.show_look("source_uri" in problems ? null : source);
    this.fields.get("label_column")?.offer(source?.columns ?? []);
    this.fields.get("dataset_name").input.placeholder = dataset_name || "automatic";
    return true;
  }

  show_problems() {
    for (const [name, field] of this.fields) field.show_problem((field.is_touched && this.problems[name]) || "");
  }

  show_look(source) {
    const {words = "", is_usable = true, kind = "", meant = ""} = source ?? {};
    const is_other = kind && kind !== this.form.kind ? ` This looks like ${KINDS[kind].toLowerCase()}.` : "";
    const is_seen = is_usable ? "" : " Airflow's API server looked, and a worker may see other disks.";
    this.look.textContent = words + (words && (is_other || is_seen));
    this.look.classList.toggle("bad", !is_usable);
    this.meant.hidden = !meant;
    this.meant.textContent = `Did you mean ${meant}?`;
    this.meant_place = meant;
  }

  take_meant() {
    const field = this.fields.get("source_uri");
    field.value = this.meant_place;
    field.input.focus();
    this.check();
  }

  say(words) {
    if (this.alert.textContent !== words) this.alert.textContent = words;
    this.alert.hidden = !words;
  }

  // Start the run, once. Afterwards the button stays off until the page of the run is there.
  async start() {
    if (is_off(this.button)) return;
    set_off(this.button, true);
    let is_started = false;
    try {
      is_started = await this.start_checked();
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      this.say(error.message);
    } finally {
      set_off(this.button, is_started);
    }
  }

  // Start the run if nothing is wrong. Return whether it was started.
  async start_checked() {
    for (const field of this.fields.values()) field.is_touched = true;
    if (!await this.check_newest() || this.shows_problem()) return false;
    const {dag_id} = this.form;
    const run = await send_json(`${dag_address(dag_id)}/dagRuns`, this.body_of_run(), `You do not have permission to start runs of ${dag_id}.`, {silent: SILENT});
    run_link({dag_id, run_id: run.dag_run_id}, "").click();
    return true;
  }

  // Check the form, and again if another check overtakes. Return whether there is an answer.
  async check_newest() {
    let number, has_answer;
    do {
      number = this.checks + 1;
      has_answer = await this.check();
    } while (!has_answer && number !== this.checks);
    return has_answer;
  }

  // What Airflow gets. The same form always has the same id of its run, so that Airflow refuses to start it twice.
  body_of_run() {
    const {dag_id} = this.form, conf = this.conf();
    if (!is_equal(this.sent, [dag_id, conf])) {
      this.sent = [dag_id, conf];
      const now = new Date().toISOString();
      this.once = {dag_run_id: `manual__${now}_${Math.random().toString(36).slice(2, 10)}`, logical_date: now};
    }
    return {...this.once, conf};
  }

  // Show the first problem. Return whether there is one.
  shows_problem() {
    const wrong = first_of(this.form).find(name => this.problems[name]);
    const [elsewhere] = Object.entries(this.problems).filter(([name]) => !this.fields.has(name));
    this.fields.get(wrong)?.input.focus();
    if (!wrong && elsewhere) this.say(`${elsewhere[1]}. Change it in Airflow's form.`);
    return Boolean(wrong || elsewhere);
  }
}

follow_theme();
const place = document.getElementById("start");
try {
  const start = new Start(place, await load_forms());
  const {dag_id, run_id} = read_state(["dag_id", "run_id"]);
  const kind = Object.keys(DAGS).find(each => DAGS[each] === dag_id);
  await start.choose_kind(start.forms.has(kind) ? kind : start.form.kind);
  if (start.forms.has(kind) && run_id) await start.take_run(run_id);
  else await start.check();
} catch (error) {
  if (!(error instanceof RequestError)) throw error;
  place.prepend(element("p", {class: "verdict", role: "alert"}, error.message));
}
