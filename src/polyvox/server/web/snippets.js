// The request as a curl command and as a Python program; live text as a program that speaks its input.

const KEY = "YOUR_API_KEY";
// Arguments of OpenAI's package; other fields go into extra_body.
const OPENAI_ARGUMENTS = ["input", "voice", "instructions", "response_format", "speed"];

export function asCurl(baseUrl, body, needsKey, extension) {
  const lines = [`curl ${quoted(`${baseUrl}v1/audio/speech`)}`, "-H 'content-type: application/json'"];
  if (needsKey) lines.push(`-H 'authorization: Bearer ${KEY}'`);
  lines.push(`-d ${quoted(JSON.stringify(body))}`, `-o speech${extension}`);
  return lines.join(" \\\n  ");
}

export function asPython(baseUrl, body, needsKey, extension, model) {
  const fields = { model, voice: "alloy", ...body }; // the package requires a voice; alloy is an alias of the first one
  const extra = Object.entries(body).filter(([name]) => !OPENAI_ARGUMENTS.includes(name));
  const args = Object.entries(fields).filter(([name]) => name === "model" || OPENAI_ARGUMENTS.includes(name));
  const lines = args.map(([name, value]) => `    ${name}=${JSON.stringify(value)},`);
  if (extra.length) lines.push(`    extra_body=${JSON.stringify(Object.fromEntries(extra))},`);
  return [
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(`${baseUrl}v1`)}, api_key="${needsKey ? KEY : "none"}")`,
    "with client.audio.speech.with_streaming_response.create(",
    ...lines,
    ") as speech:",
    `    speech.stream_to_file("speech${extension}")`,
    "",
  ].join("\n");
}

// Speaks the text of its standard input while it arrives, such as the output of a language model.
export function asPipe(baseUrl, options, needsKey, sampleRate) {
  const config = { type: "session.config", ...options, response_format: "pcm", stream_audio: true, split_granularity: "sentence" };
  const headers = needsKey ? `, additional_headers={"authorization": "Bearer ${KEY}"}` : "";
  return [
    "import codecs, json, os, sys, threading, wave",
    "from websockets.sync.client import connect",
    "",
    `with connect(${JSON.stringify(`${baseUrl.replace("http", "ws")}v1/audio/speech/stream`)}${headers}) as socket, wave.open("speech.wav", "wb") as file:`,
    `    file.setparams((1, 2, ${sampleRate}, 0, "NONE", ""))`,
    `    socket.send(${JSON.stringify(JSON.stringify(config))})`,
    "",
    "    def send():",
    "        decoder = codecs.getincrementaldecoder(\"utf-8\")()",
    "        for part in iter(lambda: os.read(0, 4096), b\"\"):",
    "            socket.send(json.dumps({\"type\": \"input.text\", \"text\": decoder.decode(part)}))",
    "        socket.send(json.dumps({\"type\": \"input.done\"}))",
    "",
    "    threading.Thread(target=send, daemon=True).start()",
    "    for message in socket:",
    "        if isinstance(message, bytes):",
    "            file.writeframes(message)",
    "        elif (event := json.loads(message))[\"type\"] == \"error\":",
    "            sys.exit(event[\"message\"])",
    "        elif event[\"type\"] == \"session.done\":",
    "            break",
    "",
  ].join("\n");
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
