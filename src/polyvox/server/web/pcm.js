// 16-bit PCM: read from a streaming response, written to a WAV file.

export async function* samplesOf(response) {
  const reader = response.body.getReader();
  let odd = null; // first byte of an incomplete sample
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      let bytes = value;
      if (odd !== null) {
        bytes = new Uint8Array(value.length + 1);
        bytes[0] = odd;
        bytes.set(value, 1);
      }
      const even = bytes.length - (bytes.length % 2);
      odd = even < bytes.length ? bytes[even] : null;
      if (even) yield new Int16Array(bytes.slice(0, even).buffer);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export function wavFile(chunks, sampleRate) {
  const size = chunks.reduce((sum, chunk) => sum + chunk.byteLength, 0);
  const header = new DataView(new ArrayBuffer(44));
  const ascii = (at, text) => [...text].forEach((letter, i) => header.setUint8(at + i, letter.charCodeAt(0)));
  ascii(0, "RIFF");
  header.setUint32(4, 36 + size, true);
  ascii(8, "WAVEfmt ");
  header.setUint32(16, 16, true);
  header.setUint16(20, 1, true); // PCM
  header.setUint16(22, 1, true); // channels
  header.setUint32(24, sampleRate, true);
  header.setUint32(28, sampleRate * 2, true);
  header.setUint16(32, 2, true); // bytes per sample
  header.setUint16(34, 16, true); // bits per sample
  ascii(36, "data");
  header.setUint32(40, size, true);
  return new Blob([header.buffer, ...chunks], { type: "audio/wav" });
}

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
