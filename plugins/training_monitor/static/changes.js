// The changes of a training under way: what changed when, and a form for another change.
import {RequestError, element, send_json} from "./monitor.js";

export class Changes {
  // `changed` is called after a change was requested, or if the page needs a new token.
  constructor(ids, changed) {
    this.ids = ids;
    this.changed = changed;
    this.list = element("ul", {class: "soft", "aria-label": "Changes of this training"});
    this.field = element("select", {"aria-label": "Setting"});
    this.value = element("input", {"aria-label": "Value", size: 8, maxlength: 100});
    this.button = element("button", {}, "Apply from the next epoch on");
    this.answer = element("span", {class: "soft", role: "status"});
    this.form = element("details", {}, element("summary", {}, "Change a setting"),
      element("p", {class: "change"}, this.field, this.value, this.button));
    this.offers = element("div", {class: "change"});
    this.element = element("div", {}, this.list, this.offers, this.answer, this.form);
    this.field.addEventListener("change", () => this.show_value());
    this.value.addEventListener("keydown", event => event.key === "Enter" && this.send_typed());
    this.button.addEventListener("click", () => this.send_typed());
  }

  show({sentences, values, offers, token}) {
    this.token = token;
    this.list.hidden = !sentences.length;
    this.list.replaceChildren(...sentences.map(sentence => element("li", {}, sentence)));
    this.show_offers(token ? offers : []);
    this.form.hidden = !token || !values.length;
    if (JSON.stringify(this.values) === JSON.stringify(values)) return;  // A person may be typing a value.
    this.values = values;
    const before = this.field.value;
    this.field.replaceChildren(...values.map(([name]) => element("option", {value: name}, name)));
    if (before) this.field.value = before;
    this.show_value();
  }

  show_value() {
    this.value.value = this.values.find(([name]) => name === this.field.value)?.[1] ?? "";
  }

  // Replace the buttons only if they change, so that the keyboard focus stays on a button.
  show_offers(offers) {
    if (this.offers_shown === JSON.stringify(offers)) return;
    this.offers_shown = JSON.stringify(offers);
    this.offers.replaceChildren(...offers.map(([words, change]) => {
      const values = Object.entries(change).map(([name, value]) => `${name}=${value}`).join(", ");
      const button = element("button", {}, `Apply ${values} from the next epoch on: ${words}`);
      button.addEventListener("click", () => this.send(change, button));
      return button;
    }));
  }

  send_typed() {
    return this.send({[this.field.value]: this.value.value.trim()}, this.button);
  }

  async send(change, button) {
    button.disabled = true;
    try {
      for (const [field, value] of Object.entries(change)) {
        const content = {field, value: String(value)};
        const {words} = await send_json(`change?${new URLSearchParams(this.ids)}`, this.token, content);
        this.answer.textContent = words;
      }
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      this.answer.textContent = error.message;
    } finally {
      button.disabled = false;
    }
    this.changed();
  }
}
