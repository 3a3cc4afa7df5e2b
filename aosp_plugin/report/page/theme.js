// Light or dark colors: those of the system, or what the user chose. A classic script in the head, so that the page is
// not painted in the wrong colors first.
(() => {
  const CHOICES = ["system", "light", "dark"];
  const SYMBOLS = { system: "◐", light: "☀", dark: "☾" };
  const system = matchMedia("(prefers-color-scheme: dark)");
  let choice = "system";
  try {  // storage may be forbidden
    choice = localStorage.getItem("theme") ?? choice;
  } catch { /* the choice is kept until the page is closed */ }
  if (!CHOICES.includes(choice)) choice = "system";

  function apply() {
    const dark = choice === "dark" || (choice === "system" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    document.dispatchEvent(new Event("themechange"));
    const button = document.getElementById("theme");
    if (!button) return;
    button.textContent = SYMBOLS[choice];
    button.title = `Colors: ${choice}`;
    button.setAttribute("aria-label", `Colors: ${choice}. Press to change.`);
  }

  function change() {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    try {
      localStorage.setItem("theme", choice);
    } catch { /* as above */ }
    apply();
  }

  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", change);
    apply();
  });
  apply();
})();
