// The state of a page in its address, so that a link shows the same.
import {airflow_document} from "./monitor.js";

// This page, and the page of Airflow around it, whose address people copy.
const windows = () => [window, airflow_document()?.defaultView].filter(each => each);

// The values of some names in the address. A value that is not there is empty.
export function read_state(names) {
  const queries = windows().map(({location}) => new URLSearchParams(location.search));
  return Object.fromEntries(names.map(name => [name, queries.map(query => query.get(name)).find(value => value) ?? ""]));
}

// Put values into the address, without a new entry in the history. An empty value is left out.
export function keep_state(values) {
  for (const {location, history} of windows()) {
    const url = new URL(location.href);
    for (const [name, value] of Object.entries(values)) {
      if (value) url.searchParams.set(name, value);
      else url.searchParams.delete(name);
    }
    if (url.href !== location.href) history.replaceState(history.state, "", url.href);
  }
}
