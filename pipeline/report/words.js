// What the pages change in the plots of Bokeh, which draws text itself, without style sheets.

const OF_LEGEND = {glyph: 25, line: 20, wide_gap: 14, narrow_gap: 6, beside_frame: 90};  // pixels

// Set the color of the text in all plots of a Bokeh document.
// deno-lint-ignore no-unused-vars -- the scripts of the pages call it
function color_words(document, color) {
  for (const plot of document.roots()) {
    plot.title.text_color = color;
    for (const each of plot.above) if (each.type === "Legend") each.label_text_color = color;
    for (const each of [...plot.left, ...plot.below])
      if (each.type.endsWith("Axis")) each.setv({major_label_text_color: color, axis_label_text_color: color});
  }
}

// Prepare a plot that is drawn in a place on the page. The canvas takes the keyboard focus, but no key does anything there.
// deno-lint-ignore no-unused-vars -- the scripts of the pages call it
function settle_plot(plot, place) {
  const view = plot.document.views_manager.get(plot);
  view.canvas_view.events_el.tabIndex = -1;
  const legends = plot.above.filter(each => each.type === "Legend"), height = plot.height;
  if (!legends.length) return;
  // Legends have as many columns as there is room for, also after the page has become wider or narrower.
  new ResizeObserver(() => {
    if (!place.isConnected) return;  // Other figures have replaced the plot.
    const frame = view.frame.bbox.width;
    const room = place.clientWidth - (frame > 0 ? view.bbox.width - frame : OF_LEGEND.beside_frame);
    plot.height = height + legends.reduce((more, legend) => more + fit_legend(legend, room), 0);
  }).observe(place);
}

// Lay a legend out within a width. Return by how many pixels it is higher than one line.
function fit_legend(legend, room) {
  const widths = widths_of_items(legend);
  const gap_of = columns => (columns < widths.length ? OF_LEGEND.narrow_gap : OF_LEGEND.wide_gap);
  const fits = columns => {
    const of_columns = Array.from({length: columns}, (_, column) => Math.max(...widths.filter((_, item) => item % columns === column)));
    return of_columns.reduce((sum, width) => sum + width) + gap_of(columns) * (columns - 1) <= room;
  };
  let columns = widths.length;
  while (columns > 1 && !fits(columns)) columns -= 1;
  if (legend.ncols !== columns) legend.setv({ncols: columns, spacing: gap_of(columns)});
  return (Math.ceil(widths.length / columns) - 1) * (OF_LEGEND.line + OF_LEGEND.narrow_gap);
}

function widths_of_items(legend) {
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.font = `${legend.label_text_font_size} ${legend.label_text_font}`;
  return legend.items.flatMap(item => item.get_labels_list_from_label_prop()).map(label => OF_LEGEND.glyph + canvas.measureText(label).width);
}
