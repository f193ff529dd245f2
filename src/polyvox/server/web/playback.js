// Playback of an utterance: play, pause and seek, also while its audio still arrives.

export class Playback {
  status = "empty"; // then playing, paused, ended
  underruns = 0;
  peak = 0;
  #audio = null;
  #player;
  #onChange;
  #start = 0; // sample that the current run in the player began with
  #played = 0; // samples of that run
  #run = null; // its number in the player
  #pastUnderruns = 0; // of earlier runs

  constructor(player, onChange) {
    this.#player = player;
    this.#onChange = onChange;
  }

  get audio() {
    return this.#audio;
  }

  // In samples.
  get position() {
    return Math.min(this.#start + this.#played, this.#audio?.length ?? 0);
  }

  get seconds() {
    return this.#audio ? this.position / this.#audio.sampleRate : 0;
  }

  // Plays new audio as it arrives.
  async begin(audio) {
    this.#audio = audio;
    this.underruns = this.#pastUnderruns = this.peak = 0;
    await this.play(0);
  }

  // Samples were added to the audio.
  push(samples) {
    if (this.#run !== null) this.#player.push(this.#run, samples);
  }

  // The audio is complete, or pauses for a while.
  end() {
    if (this.#run !== null) this.#player.end(this.#run);
  }

  async play(position = this.status === "ended" ? 0 : this.position) {
    this.#setPosition(position);
    this.#setStatus("playing");
    this.#pastUnderruns = this.underruns;
    const audio = this.#audio;
    const start = this.#start;
    const run = await this.#player.begin(audio.sampleRate, (report) => this.#report(report));
    if (audio !== this.#audio || start !== this.#start || this.status !== "playing") return this.#player.stop(run);
    this.#run = run;
    for (const samples of audio.from(start)) this.#player.push(run, samples);
    if (audio.complete) this.#player.end(run);
  }

  pause() {
    if (this.status !== "playing") return;
    this.#setPosition(this.position);
    this.#setStatus(this.#audio.complete && this.position >= this.#audio.length ? "ended" : "paused");
  }

  // Continues to play from there, or stays paused there.
  async seek(seconds) {
    const position = Math.min(Math.max(0, Math.round(seconds * this.#audio.sampleRate)), this.#audio.length);
    if (this.status === "playing") return this.play(position);
    this.#setPosition(position);
    this.#setStatus("paused");
  }

  #setPosition(position) {
    if (this.#run !== null) this.#player.stop(this.#run);
    this.#run = null;
    this.#start = position;
    this.#played = 0;
  }

  #report({ played, underruns, peak, finished }) {
    this.#played = played;
    this.underruns = this.#pastUnderruns + underruns;
    this.peak = Math.max(this.peak, peak);
    if (finished && this.#audio.complete) this.#setStatus("ended");
    else this.#onChange();
  }

  #setStatus(status) {
    this.status = status;
    this.#onChange();
  }
}
