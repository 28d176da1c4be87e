// Set the color of the text in all plots of a Bokeh document. Bokeh draws text itself, without style sheets.
// deno-lint-ignore no-unused-vars -- the scripts of the pages call it
function color_words(document, color) {
  for (const plot of document.roots()) {
    plot.title.text_color = color;
    for (const each of plot.above) if (each.type === "Legend") each.label_text_color = color;
    for (const each of [...plot.left, ...plot.below])
      if (each.type.endsWith("Axis")) each.setv({major_label_text_color: color, axis_label_text_color: color});
  }
}
