// Applies the theme that the user has selected in Airflow, else that of the system, before anything is painted.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    let theme = null;
    try {
      theme = localStorage.getItem("theme");
    } catch {
      // Storage may be disabled.
    }
    if (theme !== "light" && theme !== "dark") theme = dark.matches ? "dark" : "light";
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event("theme"));
  };
  apply();
  // Sent when another page of Airflow, such as the page around this frame, changes the theme.
  addEventListener("storage", apply);
  dark.addEventListener("change", apply);
})();
