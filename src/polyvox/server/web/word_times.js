// The times of words in an utterance, as the server estimates them, and of sentences, which are exact.

export class WordTimes {
  #words = []; // {start, end} in seconds of the audio, {from, to} in the text (UTF-16)
  #sentences = []; // those without times of their words
  #indexOf = (position) => position;
  #text = "";

  // The text that positions of the server refer to; it may grow. `offset` is where it begins in the shown text.
  setText(text, offset = 0) {
    this.#text = text;
    const codePoints = Array.from(text);
    if (codePoints.length === text.length) {
      this.#indexOf = (position) => position + offset;
      return;
    }
    const indexes = [offset]; // the server counts code points
    for (const symbol of codePoints) indexes.push(indexes.at(-1) + symbol.length);
    this.#indexOf = (position) => indexes[Math.min(position, codePoints.length)];
  }

  get text() {
    return this.#text;
  }

  // Adds the entries of a message; `seconds` is where the audio that they count from begins.
  add(message, seconds) {
    if (message.type === "audio.words") this.#words.push(...message.words.map((word) => this.#entry(word, seconds)));
    if (message.type !== "audio.segment") return;
    const sentence = this.#entry(message.segment, seconds); // comes after its words
    if (!this.#words.some(({ from, to }) => from >= sentence.from && to <= sentence.to)) this.#sentences.push(sentence);
  }

  // What is spoken at a time: the word, or the sentence where words have no times; null before the first.
  at(seconds) {
    const word = lastStarted(this.#words, seconds);
    const sentence = lastStarted(this.#sentences, seconds);
    if (word !== null && (sentence === null || word.start >= sentence.start)) return { kind: "word", ...word };
    return sentence && { kind: "sentence", ...sentence };
  }

  #entry({ start, end, text_start: from, text_end: to }, seconds) {
    return { start: start + seconds, end: end + seconds, from: this.#indexOf(from), to: this.#indexOf(to) };
  }
}

// Entries are sorted by start.
function lastStarted(entries, seconds) {
  let [low, high] = [0, entries.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle].start <= seconds) low = middle + 1;
    else high = middle;
  }
  return low ? entries[low - 1] : null;
}
