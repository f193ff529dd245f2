// Marks a range of the textarea: a layer behind it has the same text in the same layout.

export class TextHighlight {
  #textarea;
  #layer;
  #mark = document.createElement("mark");
  #before = document.createTextNode("");
  #after = document.createTextNode("");
  #shown = null; // "from-to" of the marked range

  constructor(textarea, layer) {
    this.#textarea = textarea;
    this.#layer = layer;
    layer.append(this.#before, this.#mark, this.#after);
    textarea.addEventListener("scroll", () => this.#scroll());
  }

  show({ from, to, kind }) {
    const text = this.#textarea.value;
    const shown = `${from}-${to}`;
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#mark.dataset.kind = kind;
    this.#before.data = text.slice(0, from);
    this.#mark.textContent = text.slice(from, to);
    this.#after.data = `${text.slice(to)}\n`; // a last empty line has a height only with something after it
    this.#follow();
  }

  clear() {
    if (this.#shown === null) return;
    this.#shown = null;
    this.#mark.textContent = this.#before.data = this.#after.data = "";
  }

  // Scrolls the text so that the mark is visible, unless the user edits it.
  #follow() {
    const { offsetTop, offsetHeight } = this.#mark;
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
