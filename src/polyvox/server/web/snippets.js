// The same request for a terminal and for a program.

const KEY = "YOUR_API_KEY";
// What OpenAI's package has an argument for; the rest goes into extra_body.
const OPENAI = ["input", "voice", "instructions", "response_format", "speed"];

export function asCurl(address, body, needsKey, ending) {
  const lines = [`curl ${quoted(`${address}v1/audio/speech`)}`, "-H 'content-type: application/json'"];
  if (needsKey) lines.push(`-H 'authorization: Bearer ${KEY}'`);
  lines.push(`-d ${quoted(JSON.stringify(body))}`, `-o speech${ending}`);
  return lines.join(" \\\n  ");
}

export function asPython(address, body, needsKey, ending, model) {
  const given = { model, voice: "alloy", ...body }; // the package insists on a voice; alloy stands for any
  const more = Object.entries(body).filter(([name]) => !OPENAI.includes(name));
  const args = Object.entries(given).filter(([name]) => name === "model" || OPENAI.includes(name));
  const lines = args.map(([name, value]) => `    ${name}=${JSON.stringify(value)},`);
  if (more.length) lines.push(`    extra_body=${JSON.stringify(Object.fromEntries(more))},`);
  return [
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${address}v1`)}, api_key="${needsKey ? KEY : "none"}")`,
    "with client.audio.speech.with_streaming_response.create(",
    ...lines,
    ") as speech:",
    `    speech.stream_to_file("speech${ending}")`,
    "",
  ].join("\n");
}

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // pages that came over plain http have no clipboard
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
