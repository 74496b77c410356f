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
        ? `${shown.toLocaleString("en")} of ${groups.length.toLocaleString("en")} groups, ${humanBytes(bytes)}` : "";
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

  // The enlarged photo. It is shown as its preview until the browser has loaded the file itself.
  const viewer = one(".viewer");
  const stage = one(".stage", viewer);
  const compareButton = one("[data-do=flicker]", viewer);
  let photos = [];
  let current = 0;
  let partner = 0;
  let showsPartner = false;

  const openViewer = (figure) => {
    photos = all("figure", figure.closest(".group")).filter((item) => one("a.mat", item)).map((item) => {
      const [width, height] = item.dataset.size.split("x").map(Number);
      return { figure: item, width, height, image: null };
    });
    current = 0;
    stage.replaceChildren();
    viewer.showModal();
    document.documentElement.classList.add("viewing");  // :has(dialog[open]) would cost time in a page of 20,000 photos
    select(photos.findIndex((photo) => photo.figure === figure));
  };

  const load = (photo) => {
    if (photo.image) return;
    const link = one("a.mat", photo.figure);
    photo.image = new Image();
    photo.image.alt = one("img", link).alt;
    photo.image.src = one("img", link).src;
    stage.append(photo.image);
    // A page that was sent to someone else cannot reach the file, and no browser can show a RAW file.
    if (link.protocol !== location.protocol || !/\.(jpe?g|png|webp|gif|bmp|avif)$/i.test(link.pathname)) return;
    const whole = new Image();
    whole.src = link.href;
    whole.decode().then(() => (photo.image.src = whole.src), () => {});
  };

  // Photos of one shape are drawn at one size, that of the largest, so that a comparison shows only what differs.
  const draw = (photo) => {
    const shape = photo.width / photo.height;
    const alike = photos.filter((other) => Math.abs(other.width / other.height / shape - 1) < 0.02);
    const { width, height } = alike.reduce((largest, other) => (other.width > largest.width ? other : largest));
    const scale = Math.min(1, stage.clientWidth / width, stage.clientHeight / height);
    photo.image.style.width = `${width * scale}px`;
    photo.image.style.height = `${height * scale}px`;
    return (width * scale) / photo.width;
  };

  const select = (index) => {
    const last = current;
    current = (index + photos.length) % photos.length;
    partner = current ? 0 : last || Math.min(1, photos.length - 1);
    showsPartner = false;
    show();
  };

  const show = () => {
    const photo = photos[showsPartner ? partner : current];
    for (const shown of [photos[current], photos[partner]]) load(shown);
    for (const other of photos) other.image?.classList.toggle("shown", other === photo);
    const text = (selector) => one(selector, photo.figure)?.textContent ?? "";
    const kept = photo.figure.classList.contains("kept") ? "Kept: " : "";
    one("h2", viewer).textContent = `${kept}${text(".name")}`;
    const facts = [`${photos.indexOf(photo) + 1} of ${photos.length}`, text(".facts"), text(".origin")];
    one(".viewer-facts", viewer).textContent = facts.filter(Boolean).join(" · ");
    compareButton.textContent = `Compare with ${photos[partner].figure.classList.contains("kept") ? "the kept photo" : "a copy"}`;
    compareButton.setAttribute("aria-pressed", String(showsPartner));
    for (const button of all("footer button", viewer)) button.hidden = photos.length < 2;
    if (photos.length > 1) one("code", viewer).textContent = differentCommand();
    // The text around the picture decides how much room it has.
    one(".zoom", viewer).textContent = `${Math.round(100 * draw(photo))} %`;
  };

  // The group has the command for all of its photos; the quoted paths in it have the order of the figures.
  const differentCommand = () => {
    const group = photos[0].figure.closest(".group");
    const figures = all("figure", group);
    const command = one(".decide", group);
    const path = (photo) => one(`span:nth-of-type(${figures.indexOf(photo.figure) + 1})`, command).textContent;
    return `${command.firstChild.textContent.trim()} ${path(photos[current])} ${path(photos[partner])}`;
  };

  const flicker = () => {
    showsPartner = !showsPartner && photos.length > 1;
    show();
  };

  const actions = {
    copy, collapse, flicker,
    close: () => viewer.close(),
    next: () => select(current + 1),
    previous: () => select(current - 1),
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-do]");
    if (button) return actions[button.dataset.do](button);
    const link = event.target.closest("a.mat");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      openViewer(link.closest("figure"));
    }
  });
  viewer.addEventListener("keydown", (event) => {
    const onButton = event.target.closest("button");
    if (event.key === "ArrowRight") actions.next();
    else if (event.key === "ArrowLeft") actions.previous();
    else if (event.key === " " && !onButton) flicker();
    else return;
    event.preventDefault();
  });
  viewer.addEventListener("close", () => {
    document.documentElement.classList.remove("viewing");
    stage.replaceChildren();
  });
  addEventListener("resize", () => viewer.open && show());
})();
