// Copies text to the clipboard.

const COPIED_MS = 1500;

// Copies the text; the button says so for a while.
export async function copyFrom(button, text) {
  const caption = button.textContent;
  await copy(text);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = caption), COPIED_MS);
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // pages over plain http have no clipboard
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
