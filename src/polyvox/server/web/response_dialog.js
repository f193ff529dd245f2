// The links of the footer on a server with API keys: a browser sends no key when it follows a link, so the page
// requests the address itself and shows the response.

import { apiKey, errorMessage, responseText } from "./api.js";

const HTML_ADDRESSES = { docs: "openapi.json" }; // pages that would need the key too: what they show
const $ = (id) => document.getElementById(id);

export function showResponses() {
  for (const link of document.querySelectorAll("footer a")) {
    link.addEventListener("click", (event) => {
      if (!apiKey.get()) return;
      event.preventDefault();
      show(link.textContent, link.getAttribute("href"));
    });
  }
}

async function show(title, address) {
  $("response-title").textContent = title;
  $("response").textContent = "Loading …";
  $("response-dialog").showModal();
  try {
    const text = await responseText(HTML_ADDRESSES[address] ?? address);
    $("response").textContent = HTML_ADDRESSES[address] ? operations(JSON.parse(text)) : indented(text);
  } catch (error) {
    $("response").textContent = errorMessage(error);
  }
}

// One line for each operation of an OpenAPI document.
function operations({ paths }) {
  const lines = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, { summary }]) => [method.toUpperCase(), path, summary ?? ""]),
  );
  const width = Math.max(...lines.map(([, path]) => path.length));
  return lines.map(([method, path, summary]) => `${method.padEnd(7)}${path.padEnd(width + 2)}${summary}`).join("\n");
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
