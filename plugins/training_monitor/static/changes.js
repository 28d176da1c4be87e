// The changes of a training under way: what changed when, and a form for another change.
import {RequestError, element, is_off, request_json, run_link, send_json, set_off} from "./monitor.js";

const RENEWED = "The log-in of this page was renewed: try again.";
const SILENT = "Airflow does not answer: look at the changes of this training before you try again.";
const BUILDS = "builds the dataset. Then this training ends its epoch, and that run continues it.";
const START_OF = {  // What becomes of the run that continues this training, by its state. It has none if it was started just now.
  "": BUILDS,
  running: `was started before: it ${BUILDS}`,
  failed: "was started before and failed: clear its failed task, and it goes on.",
  success: "was started before and has ended.",
};

export class Changes {
  // `changed` is called after a change was requested, or if the page needs a new token.
  constructor(ids, changed) {
    this.ids = ids;
    this.changed = changed;
    this.list = element("ul", {class: "soft", "aria-label": "Changes of this training"});
    this.field = element("select", {"aria-label": "Setting"});
    this.value = element("input", {"aria-label": "Value", size: 8, maxlength: 100});
    this.button = element("button", {}, "Apply from the next epoch on");
    this.answer = element("span", {class: "soft", role: "status", tabindex: "-1"});
    this.form = element("details", {}, element("summary", {}, "Change a setting"),
      element("p", {class: "change"}, this.field, this.value, this.button));
    this.offers = element("div", {class: "change"});
    this.element = element("div", {}, this.list, this.offers, this.answer, this.form);
    this.field.addEventListener("change", () => this.show_value());
    this.value.addEventListener("keydown", event => event.key === "Enter" && this.send_typed());
    this.button.addEventListener("click", () => this.send_typed());
  }

  show({sentences, values, offers, need_dataset, token}) {
    this.token = token;
    this.need_dataset = need_dataset;
    this.list.hidden = !sentences.length;
    this.list.replaceChildren(...sentences.map(sentence => element("li", {}, sentence)));
    this.show_offers(token ? offers : []);
    this.keep_focus(this.form, () => { this.form.hidden = !token || !values.length; });
    if (JSON.stringify(this.values) === JSON.stringify(values)) return;  // A person may be typing a value.
    this.values = values;
    const before = this.field.value;
    this.field.replaceChildren(...values.map(([name]) => element("option", {value: name}, name)));
    if (before) this.field.value = before;
    this.show_value();
  }

  show_value() {
    this.value.value = this.values.find(([name]) => name === this.field.value)?.[1] ?? "";
    const is_new = this.needs_dataset({[this.field.value]: ""});
    this.button.textContent = is_new ? "Build a new dataset and continue on it" : "Apply from the next epoch on";
  }

  needs_dataset(change) {
    return Object.keys(change).some(name => this.need_dataset.includes(name));
  }

  // Replace the buttons only if they change, so that the keyboard focus stays on a button.
  show_offers(offers) {
    if (this.offers_shown === JSON.stringify(offers)) return;
    this.offers_shown = JSON.stringify(offers);
    this.keep_focus(this.offers, () => this.offers.replaceChildren(...offers.map(([words, change]) => {
      const values = Object.entries(change).map(([name, value]) => `${name}=${value}`).join(", ");
      const how = this.needs_dataset(change) ? "on a new dataset, in a new run" : "from the next epoch on";
      const button = element("button", {}, `Apply ${values} ${how}: ${words}`);
      button.addEventListener("click", () => this.send(change, button));
      return button;
    })));
  }

  // Change a part of the page. If that removes the focused element, the answer beside it gets the keyboard focus.
  keep_focus(part, change) {
    const focused = part.contains(document.activeElement) && document.activeElement;
    change();
    if (focused && !focused.checkVisibility()) this.answer.focus();
  }

  send_typed() {
    return this.send({[this.field.value]: this.value.value.trim()}, this.button);
  }

  send_to(address, content) {
    const options = {headers: {"X-Tenfold-Token": this.token}, silent: SILENT};
    return send_json(`${address}?${new URLSearchParams(this.ids)}`, content, RENEWED, options);
  }

  // Start a run that builds the dataset and continues this training, by Airflow's own API with the rights of the user.
  async start_run(values) {
    const {dag_id, run} = await this.send_to("continuation", {values});
    const address = `../api/v2/dags/${encodeURIComponent(dag_id)}/dagRuns`;
    const silent = `Airflow does not answer: look at the runs of ${dag_id} before you try again.`;
    let state = "";
    try {
      await send_json(address, run, `You do not have permission to start runs of ${dag_id}.`, {silent});
    } catch (error) {
      if (error.status !== 409) throw error;  // The same values have the same id of the run.
      ({state} = await request_json(`${address}/${encodeURIComponent(run.dag_run_id)}`));
    }
    this.answer.replaceChildren("The run ", run_link({dag_id, run_id: run.dag_run_id}, run.dag_run_id), ` ${START_OF[state] ?? START_OF.running}`);
  }

  async send(change, button) {
    if (is_off(button)) return;
    set_off(button, true);
    try {
      const values = Object.fromEntries(Object.entries(change).map(([name, value]) => [name, String(value)]));
      if (this.needs_dataset(change)) await this.start_run(values);
      else this.answer.textContent = (await this.send_to("change", {values})).words;
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      this.answer.textContent = error.message;
    } finally {
      set_off(button, false);
    }
    this.changed();
  }
}
