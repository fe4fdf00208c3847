// Applies the theme that the user has selected in Airflow, before anything is painted.
(() => {
  const apply = () => {
    let theme = null;
    try {
      theme = localStorage.getItem("theme");
    } catch {
      // Storage may be disabled.
    }
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    dispatchEvent(new Event("theme"));
  };
  apply();
  // Sent when another page of Airflow, such as the page around this frame, changes the theme.
  addEventListener("storage", apply);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
})();
