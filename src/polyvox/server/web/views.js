// The views of the page. The hash of the address names the one that is shown.

const DEFAULT = "speak";

export function showViews(onChange) {
  const links = [...document.querySelectorAll("#views a")];
  const show = () => {
    const names = links.map((link) => link.hash.slice(1));
    const current = names.includes(location.hash.slice(1)) ? location.hash.slice(1) : DEFAULT;
    for (const link of links) {
      const name = link.hash.slice(1);
      if (name === current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      document.getElementById(`${name}-view`).hidden = name !== current;
    }
    onChange(current);
  };
  window.addEventListener("hashchange", show);
  show();
}
