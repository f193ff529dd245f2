// The audio of an utterance: 16-bit samples, kept for replay and download.

export class SpeechAudio {
  chunks = [];
  length = 0; // samples
  complete = false;

  constructor(sampleRate) {
    this.sampleRate = sampleRate;
  }

  get seconds() {
    return this.length / this.sampleRate;
  }

  add(samples) {
    this.chunks.push(samples);
    this.length += samples.length;
  }

  // The chunks from a sample on.
  *from(position) {
    let start = 0;
    for (const chunk of this.chunks) {
      if (start + chunk.length > position) yield start < position ? chunk.subarray(position - start) : chunk;
      start += chunk.length;
    }
  }

  pcmFile() {
    return new Blob(this.chunks, { type: "audio/pcm" });
  }

  wavFile() {
    const size = this.length * 2;
    const header = new DataView(new ArrayBuffer(44));
    const ascii = (at, text) => [...text].forEach((letter, i) => header.setUint8(at + i, letter.charCodeAt(0)));
    ascii(0, "RIFF");
    header.setUint32(4, 36 + size, true);
    ascii(8, "WAVEfmt ");
    header.setUint32(16, 16, true);
    header.setUint16(20, 1, true); // PCM
    header.setUint16(22, 1, true); // channels
    header.setUint32(24, this.sampleRate, true);
    header.setUint32(28, this.sampleRate * 2, true);
    header.setUint16(32, 2, true); // bytes per sample
    header.setUint16(34, 16, true); // bits per sample
    ascii(36, "data");
    header.setUint32(40, size, true);
    return new Blob([header.buffer, ...this.chunks], { type: "audio/wav" });
  }
}

export function saveFile(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
