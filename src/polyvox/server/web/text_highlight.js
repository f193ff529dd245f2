// Marks a range of the textarea: a layer behind it has the same text in the same layout.

import { MarkedText } from "./marked_text.js";

export class TextHighlight {
  #textarea;
  #layer;
  #text;
  #shown = null; // "from-to" of the marked range

  constructor(textarea, layer) {
    this.#textarea = textarea;
    this.#layer = layer;
    this.#text = new MarkedText(layer);
    textarea.addEventListener("scroll", () => this.#scroll());
  }

  show(range) {
    const shown = `${range.from}-${range.to}`;
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#text.show(`${this.#textarea.value}\n`, range); // a last empty line has a height only with something after it
    this.#follow();
  }

  clear() {
    if (this.#shown === null) return;
    this.#shown = null;
    this.#text.show("", null);
  }

  // Scrolls the text so that the mark is visible, unless the user edits it.
  #follow() {
    const { offsetTop, offsetHeight } = this.#text.mark;
    const { scrollTop, clientHeight } = this.#textarea;
    if (offsetTop < scrollTop || offsetTop + offsetHeight > scrollTop + clientHeight) {
      this.#textarea.scrollTop = offsetTop - clientHeight / 3;
    }
    this.#scroll();
  }

  #scroll() {
    this.#layer.scrollTop = this.#textarea.scrollTop;
  }
}
