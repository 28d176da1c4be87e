// What the pages share: the theme of Airflow, elements, and requests.

const COLORS = {
  "--page": "--chakra-colors-bg", "--subtle": "--chakra-colors-bg-subtle", "--ink": "--chakra-colors-fg",
  "--soft": "--chakra-colors-fg-muted", "--line": "--chakra-colors-border",
};
const MAX_UNBROKEN = 12;  // Characters.
const REVOKE_MS = 60_000;  // The browser has read the content of a download by then.

// The document of Airflow's page around this one; null if this page was opened by itself.
export function airflow_document() {
  try {
    return parent === window ? null : parent.document;
  } catch {
    return null;
  }
}

// Use the colors of Airflow, and call `changed` after each change.
export function follow_theme(changed = () => {}) {
  const outer = airflow_document()?.documentElement;
  const update = () => {
    const dark = outer ? outer.classList.contains("dark") : matchMedia("(prefers-color-scheme: dark)").matches;
    const root = document.documentElement;
    root.classList.toggle("dark", dark);
    for (const [ours, theirs] of outer ? Object.entries(COLORS) : []) {
      const value = getComputedStyle(outer).getPropertyValue(theirs).trim();
      if (value) root.style.setProperty(ours, value);
    }
    changed();
  };
  update();
  if (outer) new MutationObserver(update).observe(outer, {attributes: true, attributeFilter: ["class"]});
  else matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
}

// An element with attributes and children. Strings are inserted as text, so no name from outside is parsed as markup.
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.map(child => (child instanceof Node ? child : String(child))));
  return node;
}

export function table(head, rows, caption) {
  const heads = head.map(cell => element("th", {scope: "col"}, cell));
  // A path may break anywhere, but not a number.
  const look = cell => (cell.length <= MAX_UNBROKEN ? {class: "unbroken"} : {});
  const body = rows.map(([name, ...cells]) =>
    element("tr", {}, element("th", {scope: "row"}, name), ...cells.map(cell => element("td", look(cell), cell))));
  return scroller(caption, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body)));
}

// A container that the keyboard can scroll. It is a tab stop only if its content is wider than it is.
export function scroller(name, content, tag = "div") {
  const container = element(tag, {class: "scroll", tabindex: "-1", role: "region", "aria-label": name}, content);
  const observer = new ResizeObserver(() => { container.tabIndex = container.scrollWidth > container.clientWidth ? 0 : -1; });
  for (const each of [container, content]) observer.observe(each);
  return container;
}

// Save content (a Blob) as a file. Airflow's frame may not download, so Airflow's page does it.
export function download(name, content) {
  const anchor = (airflow_document() ?? document).createElement("a");
  Object.assign(anchor, {href: URL.createObjectURL(content), download: name});
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), REVOKE_MS);
}

// The DAGs that the start page starts, by the kind of their examples.
export const DAGS = {images: "image_training", table: "tabular_training"};

export class RequestError extends Error {
  // `status` is that of the answer; 0 without an answer.
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const REFUSALS = [400, 404, 409, 422];

// The reason in an answer of Airflow.
async function reason_of(response) {
  const text = await response.text();
  try {
    const {detail} = JSON.parse(text);
    return typeof detail === "string" ? detail : JSON.stringify(detail);
  } catch {
    return text;
  }
}

const FORBIDDEN = "You do not have permission to see the runs of this DAG.";

// The JSON at one of our addresses, or of Airflow's API. Throws RequestError with a message for the user: `forbidden` if
// they may not do this, `silent` if there is no answer.
export async function request_json(address, options = {}, forbidden = FORBIDDEN, silent = "Airflow does not answer: trying again.") {
  let response;
  try {
    response = await fetch(address, {credentials: "same-origin", ...options});
  } catch {
    throw new RequestError(silent);
  }
  const {status} = response;
  if (status === 401) throw new RequestError("You are no longer logged in: reload the page of Airflow.", status);
  if (status === 403) throw new RequestError(forbidden, status);
  if (REFUSALS.includes(status)) throw new RequestError(`Airflow refused: ${await reason_of(response)}`, status);
  if (!response.ok) throw new RequestError(`Airflow answered ${status}: its log says why.`, status);
  try {
    return await response.json();
  } catch {  // The connection broke meanwhile, or another program answered, such as a page that asks for a log-in.
    throw new RequestError(silent);
  }
}

// Send a value as JSON, and return the answer. The reason for a refusal is in the message of the RequestError. Nothing is
// sent again by itself.
export function send_json(address, value, forbidden, {headers = {}, silent = "Airflow does not answer: try again."} = {}) {
  const all_headers = {"Content-Type": "application/json", ...headers};
  return request_json(address, {method: "POST", headers: all_headers, body: JSON.stringify(value)}, forbidden, silent);
}

// Whether a button does not react for now. Unlike with `disabled`, it keeps the keyboard focus.
export const is_off = button => button.getAttribute("aria-disabled") === "true";
export const set_off = (button, off) => button.setAttribute("aria-disabled", String(off));

// A link that leaves the frame. Airflow's frame may neither open a window nor change the page, so Airflow's page does it.
function leaving_link(address, words, target) {
  const anchor = element("a", {href: address, target, rel: "noopener"}, words);
  const follow = event => {
    const outer = airflow_document();
    if (!outer || event.button > 1) return;
    event.preventDefault();
    const in_new_tab = event.button === 1 || event.ctrlKey || event.metaKey || event.shiftKey;
    const proxy = outer.createElement("a");
    Object.assign(proxy, {href: anchor.href, target: in_new_tab ? "_blank" : target, rel: "noopener"});
    proxy.click();
  };
  anchor.addEventListener("click", follow);
  anchor.addEventListener("auxclick", follow);
  return anchor;
}

// A link that opens a new tab.
export const link = (address, words) => leaving_link(address, words, "_blank");

// A link to a page of Airflow.
export const page_link = (address, words) => leaving_link(address, words, "_top");

// A link to the page of Airflow that has a run's training.
export function run_link({dag_id, run_id}, words) {
  const [dag, run] = [dag_id, run_id].map(encodeURIComponent);
  return leaving_link(`../dags/${dag}/runs/${run}/plugin/training`, words, "_top");
}

export const dag_link = (dag_id, words) => leaving_link(`../dags/${encodeURIComponent(dag_id)}`, words, "_top");
