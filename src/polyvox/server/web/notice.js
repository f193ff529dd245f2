// A problem with a Retry button. If the server says when to retry, the button counts down to it.

export class Notice {
  #element;
  #button;
  #timer = null;
  #retry = null;

  constructor(element) {
    this.#element = element;
    this.#button = element.querySelector("button");
    this.#button.addEventListener("click", () => {
      const retry = this.#retry;
      this.hide();
      retry();
    });
  }

  // retry: called by the button; without it there is none. retryAfter: seconds until it is enabled.
  show(text, retry = null, retryAfter = null) {
    this.hide();
    this.#retry = retry;
    this.#element.querySelector("p").textContent = text;
    this.#button.hidden = retry === null;
    this.#element.hidden = false;
    if (retry !== null) this.#countDown(Math.ceil(retryAfter ?? 0));
  }

  hide() {
    clearTimeout(this.#timer);
    this.#element.hidden = true;
  }

  #countDown(seconds) {
    this.#button.disabled = seconds > 0;
    this.#button.textContent = seconds > 0 ? `Retry in ${seconds} s` : "Retry";
    if (seconds > 0) this.#timer = setTimeout(() => this.#countDown(seconds - 1), 1000);
  }
}
