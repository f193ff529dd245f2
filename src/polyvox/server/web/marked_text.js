// A text in an element, with one range of it marked.

export class MarkedText {
  #before = document.createTextNode("");
  #after = document.createTextNode("");
  mark = document.createElement("mark");

  constructor(element) {
    element.append(this.#before, this.mark, this.#after);
  }

  // range: {from, to, kind}, or null for none.
  show(text, range) {
    const { from, to, kind } = range ?? { from: text.length, to: text.length, kind: "" };
    this.#before.data = text.slice(0, from);
    this.mark.textContent = text.slice(from, to);
    this.mark.dataset.kind = kind;
    this.#after.data = text.slice(to);
  }
}
