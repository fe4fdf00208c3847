// Takes the theme that the user has chosen in Airflow, before anything is painted.
(() => {
  const apply = () => {
    let theme = null;
    try {
      theme = localStorage.getItem("theme");
    } catch {
      // Storage may be switched off.
    }
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    dispatchEvent(new Event("theme"));
  };
  apply();
  // Sent when another page of Airflow, such as the one around this frame, changes it.
  addEventListener("storage", apply);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
})();
