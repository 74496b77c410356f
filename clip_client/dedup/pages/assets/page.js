"use strict";
(() => {
  const one = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  document.documentElement.classList.add("js");

  // As human_bytes in clip_client/dedup/text.py.
  const humanBytes = (size) => {
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (size < 999.5) return `${unit === "B" || size >= 99.5 ? size.toFixed(0) : size.toFixed(1)} ${unit}`;
      size /= 1000;
    }
    return `${size.toFixed(1)} TB`;
  };

  // Filters.
  const form = one(".filters");
  if (form) {
    const groups = all(".group").map((element) => ({ element, names: null }));
    const names = (group) => (group.names ??= all(".name, .folder", group.element)
      .map((item) => item.textContent).join("\n").toLowerCase());
    const filter = () => {
      const tier = form.elements.tier?.value;  // there is no choice if all groups have one tier
      const wanted = form.elements.text.value.trim().toLowerCase();
      let shown = 0;
      let bytes = 0;
      for (const group of groups) {
        const { dataset } = group.element;
        const fits = (!tier || dataset.tier === tier) && (!wanted || names(group).includes(wanted));
        group.element.hidden = !fits;
        shown += fits;
        bytes += fits ? Number(dataset.bytes) : 0;
      }
      one(".shown", form).textContent = tier || wanted
        ? `${shown.toLocaleString("en")} of ${groups.length.toLocaleString("en")} groups${bytes ? `, ${humanBytes(bytes)}` : ""}` : "";
    };
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    filter();  // a browser keeps what was typed when the page is loaded again
  }

  const collapse = (button) => {
    const open = button.textContent.startsWith("Expand");
    for (const details of all(".group > details")) details.open = open;
    button.textContent = open ? "Collapse all" : "Expand all";
  };

  const copy = async (button) => {
    const code = one("code", button.closest(".command"));
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);  // some browsers give local pages no clipboard
      document.execCommand("copy");
    }
    const label = (button.dataset.label ??= button.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 2000);
  };

  const viewer = new Viewer(one(".viewer"));
  const openViewer = (figure) => {
    const photos = Viewer.photosIn(figure.closest(".group"));
    viewer.open(photos, photos.findIndex((photo) => photo.figure === figure));
  };

  // The group has the command for all of its photos; the quoted paths in it have the order of the figures. Files with
  // the same bytes are one photo, for which there is no such command.
  viewer.dialog.addEventListener("show", ({ detail: { photo, partner } }) => {
    const group = photo.figure.closest(".group");
    const figures = all("figure", group);
    const command = one(".decide", group);
    const canDiffer = photo.figure.dataset.content !== partner.figure.dataset.content;
    one(".command", viewer.dialog).hidden = !canDiffer;
    if (!canDiffer) return;
    const path = ({ figure }) => one(`span:nth-of-type(${figures.indexOf(figure) + 1})`, command).textContent;
    one("code", viewer.dialog).textContent = `${command.firstChild.textContent.trim()} ${path(photo)} ${path(partner)}`;
  });

  const actions = { copy, collapse };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-do]");
    if (button) return actions[button.dataset.do](button);
    const link = event.target.closest("a.mat");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      openViewer(link.closest("figure"));
    }
  });
})();
