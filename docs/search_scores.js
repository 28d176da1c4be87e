// How the results of a search are sorted. The numbers are those of Sphinx, which has no file to change only one of them.
globalThis.Scorer = {
  // Pages that answer a question come before the changelog, which has all words. A result has its page and its score.
  score: ({0: page, 4: score}) => (page === "changelog" ? score - 1000 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
