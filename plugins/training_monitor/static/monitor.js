// What the pages share: the looks of Airflow around them, elements, and requests.

const COLORS = {
  "--page": "--chakra-colors-bg", "--subtle": "--chakra-colors-bg-subtle", "--ink": "--chakra-colors-fg",
  "--soft": "--chakra-colors-fg-muted", "--line": "--chakra-colors-border",
};

// The page of Airflow that this one lies in; null where it was opened by itself.
function around() {
  try {
    return parent === window ? null : parent.document;
  } catch {
    return null;
  }
}

// Take over the colors of Airflow, and call `changed` after each change.
export function follow_looks(changed = () => {}) {
  const outer = around()?.documentElement;
  const looks = () => {
    const dark = outer ? outer.classList.contains("dark") : matchMedia("(prefers-color-scheme: dark)").matches;
    const root = document.documentElement;
    root.classList.toggle("dark", dark);
    for (const [ours, theirs] of outer ? Object.entries(COLORS) : []) {
      const value = getComputedStyle(outer).getPropertyValue(theirs).trim();
      if (value) root.style.setProperty(ours, value);
    }
    changed();
  };
  looks();
  if (outer) new MutationObserver(looks).observe(outer, {attributes: true, attributeFilter: ["class"]});
  else matchMedia("(prefers-color-scheme: dark)").addEventListener("change", looks);
}

// The color of secondary text, as #rrggbb, because Bokeh reads fewer notations of colors than a browser.
export function soft_color() {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  canvas.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
  canvas.fillRect(0, 0, 1, 1);
  return `#${[...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(each => each.toString(16).padStart(2, "0")).join("")}`;
}

// An element with attributes and children. Texts are put in as text: nothing that comes from elsewhere is markup.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.map(child => (child instanceof Node ? child : String(child))));
  return made;
}

export function table(head, rows, caption) {
  const cells = (row, name) => row.map(cell => element(name, name === "th" ? {scope: "col"} : {}, cell));
  const body = rows.map(row => element("tr", {}, element("th", {scope: "row"}, row[0]), ...cells(row.slice(1), "td")));
  return element("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": caption}, element("table", {},
    element("thead", {}, element("tr", {}, ...cells(head, "th"))), element("tbody", {}, ...body)));
}

export class Refused extends Error {}

// The JSON at an address of ours. Raises Refused with words for a person.
export async function ask(address) {
  let response;
  try {
    response = await fetch(address, {credentials: "same-origin"});
  } catch {
    throw new Refused("Airflow does not answer: trying again.");
  }
  if (response.status === 401) throw new Refused("You are not logged in any more: reload the page of Airflow.");
  if (response.status === 403) throw new Refused("You may not see the runs of this DAG.");
  if (!response.ok) throw new Refused(`Airflow answered ${response.status}: its log says why.`);
  return response.json();
}

// A link that leaves the frame. Airflow's frame may open no window and move no page; its own page may, and does it.
function leaving(address, words, target) {
  const made = element("a", {href: address, target, rel: "noopener"}, words);
  const follow = event => {
    const outer = around();
    if (!outer || event.button > 1) return;
    event.preventDefault();
    const aside = event.button === 1 || event.ctrlKey || event.metaKey || event.shiftKey;
    const proxy = outer.createElement("a");
    Object.assign(proxy, {href: made.href, target: aside ? "_blank" : target, rel: "noopener"});
    proxy.click();
  };
  made.addEventListener("click", follow);
  made.addEventListener("auxclick", follow);
  return made;
}

// A link to a page of its own.
export const link = (address, words) => leaving(address, words, "_blank");

// A link to a page of Airflow.
export const page_link = (address, words) => leaving(address, words, "_top");

// A link to the page of Airflow that has a run's training.
export function run_link({dag_id, run_id}, words) {
  const [dag, run] = [dag_id, run_id].map(encodeURIComponent);
  return leaving(`../dags/${dag}/runs/${run}/plugin/training`, words, "_top");
}

export const dag_link = (dag_id, words) => leaving(`../dags/${encodeURIComponent(dag_id)}`, words, "_top");
