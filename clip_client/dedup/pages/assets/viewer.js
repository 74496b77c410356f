"use strict";

// The photos of one group, enlarged: one at a time, side by side, or their difference, at one zoom and place.
// Each is shown as its preview until the browser has loaded the photo itself.
//
// A photo: {figure, name, facts, width, height, preview, whole, transform, region, isKept}. `transform` maps its pixels
// to those of the first photo (rows of a 2x3 matrix; null if unknown); `region` is the part of the first photo that
// differs (left, top, width, height as shares; null if none does).
class Viewer {
  static #SAME_SHAPE = 0.02;
  static #MOST_ZOOMED = 8;  // screen pixels per pixel of a photo
  static #BRIGHTER = 3;  // a difference than it is
  static #TILE = 1024;  // pixels along a side of what is compared at once: 4 MB

  constructor(dialog) {
    this.dialog = dialog;
    this.stage = dialog.querySelector(".stage");
    this.photos = [];
    this.mode = "one";
    this.#panes = [...this.stage.children]
      .map((element) => ({ element, name: element.firstChild, region: element.lastChild }));
    this.stage.style.setProperty("--brighter", Viewer.#BRIGHTER);
    this.#listen();
  }

  // How many pixels of the target one pixel of the source covers, along a side.
  static #scale(matrix) {
    return Math.sqrt(Math.abs(matrix.a * matrix.d - matrix.b * matrix.c));
  }

  #panes;
  #current = 0;
  #partner = 0;
  #showsPartner = false;
  #view = { zoom: 1, x: 0, y: 0 };
  #pointers = new Map();
  #measured = 0;  // counts what has been measured; an older result comes too late

  get current() { return this.photos[this.#current]; }

  open(photos, index = 0) {
    for (const photo of this.photos) photo.image?.remove();
    this.photos = photos;
    this.#current = 0;
    this.#view = { zoom: 1, x: 0, y: 0 };
    if (!this.dialog.open) this.dialog.showModal();
    document.documentElement.classList.add("viewing");  // :has(dialog[open]) would cost time in a page of 20,000 photos
    this.select(index);
  }

  select(index) {
    const last = this.#current;
    this.#current = (index + this.photos.length) % this.photos.length;
    this.#partner = this.#current ? 0 : last || Math.min(1, this.photos.length - 1);
    this.#showsPartner = false;
    this.show();
  }

  // What each control with a data-do in the dialog does.
  actions = {
    close: () => this.dialog.close(),
    next: () => this.select(this.#current + 1),
    previous: () => this.select(this.#current - 1),
    flicker: () => {
      this.mode = "one";
      this.#showsPartner = !this.#showsPartner && this.photos.length > 1;
      this.show();
    },
    one: () => this.#switchTo("one"),
    side: () => this.#switchTo("side"),
    difference: () => this.#switchTo("difference"),
    "zoom-in": () => this.#zoomBy(1.5),
    "zoom-out": () => this.#zoomBy(1 / 1.5),
    actual: () => this.#zoomBy(this.#toActual),
  };

  #switchTo(mode) {
    this.mode = mode;
    this.#showsPartner = false;
    this.show();
  }

  get #shown() { return this.photos[this.#showsPartner ? this.#partner : this.#current]; }

  // Which photos each pane shows.
  get #layout() {
    const [current, partner] = [this.photos[this.#current], this.photos[this.#partner]];
    if (this.mode === "one" || current === partner) return [[this.#shown], []];
    const pair = this.#current < this.#partner ? [current, partner] : [partner, current];
    return this.mode === "side" ? pair.map((photo) => [photo]) : [pair, []];
  }

  show() {
    const { dialog, photos } = this;
    const one = (selector) => dialog.querySelector(selector);
    const shown = this.#shown;
    const partner = photos[this.#partner];
    for (const photo of [photos[this.#current], partner]) this.#load(photo);
    one("h2").textContent = `${shown.isKept ? "Kept: " : ""}${shown.name}`;
    one(".viewer-facts").textContent = [`${photos.indexOf(shown) + 1} of ${photos.length}`, ...shown.facts].join(" · ");
    const compare = one("[data-do=flicker]");
    const other = partner.isKept ? "the kept photo" : partner.figure.closest(".found") ? "another" : "a copy";
    compare.textContent = `Compare with ${other}`;
    compare.setAttribute("aria-pressed", String(this.#showsPartner));
    for (const mode of ["one", "side", "difference"]) {
      one(`[data-do=${mode}]`).setAttribute("aria-pressed", String(this.mode === mode));
    }
    for (const button of dialog.querySelectorAll(".several")) button.hidden = photos.length < 2;
    this.stage.classList.toggle("is-side", this.mode === "side" && photos.length > 1);
    this.stage.classList.toggle("is-difference", this.mode === "difference" && photos.length > 1);
    dialog.dispatchEvent(new CustomEvent("show", { detail: { photo: photos[this.#current], partner } }));
    this.#measure();
    this.#draw();  // last: the text around the stage decides how much room it has
  }

  // Says what the difference shows: a dark screen may also be a photo that is not there yet.
  async #measure() {
    const note = this.dialog.querySelector(".viewer-difference");
    const request = ++this.#measured;
    const [pair] = this.#layout;
    if (pair.length < 2) return void (note.textContent = "");
    note.textContent = "Loading …";
    await Promise.all(pair.map((photo) => photo.loaded));
    const areEqual = request === this.#measured && await this.#areEqual(pair, () => request === this.#measured);
    if (request !== this.#measured) return;
    note.textContent = areEqual ? "No difference" : `What differs, ${Viewer.#BRIGHTER} times as bright`;
  }

  // Whether two photos have the same pixels in their frame; false if the browser may not read them, as from files.
  async #areEqual(pair, isWanted) {
    const frame = this.#frameOf(pair[0]);
    if (this.#frameOf(pair[1]) !== frame) return false;
    const side = Viewer.#TILE;
    const context = new OffscreenCanvas(side, side).getContext("2d", { willReadFrequently: true });
    for (let y = 0; y < frame.height; y += side) {
      for (let x = 0; x < frame.width; x += side) {
        context.clearRect(0, 0, side, side);
        pair.forEach((photo, index) => {
          context.globalCompositeOperation = index ? "difference" : "source-over";
          context.setTransform(new DOMMatrix().translate(-x, -y).multiply(this.#inFrame(photo)));
          context.drawImage(photo.image, 0, 0, photo.width, photo.height);
        });
        context.resetTransform();
        try {
          const { data } = context.getImageData(0, 0, side, side);
          if (data.some((value, index) => value && index % 4 < 3)) return false;
        } catch {
          return false;
        }
        await new Promise((done) => setTimeout(done));
        if (!isWanted()) return false;
      }
    }
    return true;
  }

  #load(photo) {
    if (photo.image) return;
    photo.image = new Image(photo.width, photo.height);
    photo.image.alt = photo.name;
    photo.image.src = photo.preview;
    photo.image.draggable = false;
    photo.loaded = photo.image.decode().catch(() => {});
    if (!photo.whole) return;
    const whole = new Image();
    whole.src = photo.whole;
    photo.loaded = whole.decode().then(() => {
      photo.image.src = whole.src;
      return photo.image.decode();
    }).catch(() => {});
  }

  // Photos that show the same are drawn in one frame, that of the first of them, so that only what differs moves.
  #frameOf(photo) {
    if (photo.transform) return this.photos[0];
    const shape = (one) => one.width / one.height;
    return this.photos.find(
      (other) => !other.transform && Math.abs(shape(other) / shape(photo) - 1) < Viewer.#SAME_SHAPE);
  }

  #inFrame(photo) {
    const frame = this.#frameOf(photo);
    if (!photo.transform) return new DOMMatrix().scale(frame.width / photo.width, frame.height / photo.height);
    const [a, c, e, b, d, f] = photo.transform;
    return new DOMMatrix([a, b, c, d, e, f]);
  }

  // Pixels of a pane per pixel of the frame. Nothing is enlarged until a person zooms.
  #scaleInPane(frame, pane) {
    const { clientWidth: width, clientHeight: height } = pane.element;
    const finest = Math.max(...this.photos.filter((photo) => this.#frameOf(photo) === frame)
      .map((photo) => 1 / Viewer.#scale(this.#inFrame(photo))));
    return Math.min(finest, width / frame.width, height / frame.height) * this.#view.zoom;
  }

  // Pixels of the frame -> pixels of a pane. Its edges lie between pixels of the screen: of a pixel that a photo covers
  // in part, no photo takes all away, so a difference would not be black there.
  #frameInPane(frame, pane) {
    const { left, top } = pane.element.getBoundingClientRect();
    const { clientWidth: width, clientHeight: height } = pane.element;
    const snapped = (value) => Math.round(value * devicePixelRatio) / devicePixelRatio;
    const scale = this.#scaleInPane(frame, pane);
    const [across, down] = [frame.width, frame.height].map((side) => snapped(side * scale) || 1 / devicePixelRatio);
    const x = snapped(left + (width - across) / 2 + this.#view.x) - left;
    const y = snapped(top + (height - down) / 2 + this.#view.y) - top;
    return new DOMMatrix().translate(x, y).scale(across / frame.width, down / frame.height);
  }

  #placed(photo, pane) {
    return this.#frameInPane(this.#frameOf(photo), pane).multiply(this.#inFrame(photo));
  }

  #pixelSize(photo) {
    return this.#scaleInPane(this.#frameOf(photo), this.#panes[0]) * Viewer.#scale(this.#inFrame(photo));
  }

  // The factor from the whole photo to the pixels of the most detailed photo in the same frame, and back.
  get #toActual() {
    const frame = this.#frameOf(this.#shown);
    const shared = this.photos.filter((photo) => this.#frameOf(photo) === frame);
    return this.#view.zoom > 1 ? 0 : 1 / Math.min(...shared.map((photo) => this.#pixelSize(photo)));
  }

  #draw() {
    const layout = this.#layout;
    for (const photo of this.photos) {
      const index = layout.findIndex((photos) => photos.includes(photo));
      photo.image?.classList.toggle("shown", index >= 0);
      if (index < 0) continue;
      const pane = this.#panes[index];
      if (photo.image.parentElement !== pane.element) pane.element.prepend(photo.image);
      const matrix = this.#placed(photo, pane);
      photo.image.style.transform = matrix.toString();
      photo.image.classList.toggle("is-pixelated", Viewer.#scale(matrix) > 2);
    }
    this.#panes.forEach((pane, index) => {
      const [photo] = layout[index];
      pane.name.textContent = photo ? `${photo.isKept ? "Kept: " : ""}${photo.name}` : "";
      this.#outline(pane, photo);
    });
    this.dialog.querySelector(".zoom").textContent = `${Math.round(100 * this.#pixelSize(this.#shown))} %`;
  }

  #outline(pane, photo) {
    const region = [photo, this.current, this.photos[this.#partner]].find((one) => one?.region)?.region;
    const first = this.photos[0];
    pane.region.hidden = !region || !photo || this.#frameOf(photo) !== first;
    if (pane.region.hidden) return;
    const [left, top, width, height] = region;
    const matrix = this.#frameInPane(first, pane);
    const corner = matrix.transformPoint(new DOMPoint(left * first.width, top * first.height));
    Object.assign(pane.region.style, {
      transform: `translate(${corner.x}px, ${corner.y}px)`,
      width: `${width * first.width * matrix.a}px`,
      height: `${height * first.height * matrix.d}px`,
    });
  }

  // Zooms around a point of the pane, given from its middle; a factor of 0 shows the whole photo again.
  #zoomBy(factor, x = 0, y = 0) {
    const before = this.#view.zoom;
    const most = Math.max(1, (before * Viewer.#MOST_ZOOMED) / this.#pixelSize(this.#shown));
    const zoom = Math.min(most, Math.max(1, before * factor));
    const ratio = zoom / before;
    this.#moveTo(zoom, x - (x - this.#view.x) * ratio, y - (y - this.#view.y) * ratio);
  }

  #moveTo(zoom, x, y) {
    const [pane] = this.#panes;
    const frame = this.#frameOf(this.#shown);
    this.#view.zoom = zoom;
    const scale = this.#scaleInPane(frame, pane);
    const within = (value, photo, room) => {
      const most = Math.max(0, (photo * scale - room) / 2);
      return Math.min(most, Math.max(-most, value));
    };
    this.#view.x = within(x, frame.width, pane.element.clientWidth);
    this.#view.y = within(y, frame.height, pane.element.clientHeight);
    this.#draw();
  }

  #listen() {
    const { dialog, stage } = this;
    dialog.addEventListener("click", (event) => {
      const control = event.target.closest("[data-do]");
      const action = control && this.actions[control.dataset.do];
      if (!action) return;
      event.stopPropagation();
      action();
    });
    dialog.addEventListener("keydown", (event) => this.#press(event));
    dialog.addEventListener("close", () => document.documentElement.classList.remove("viewing"));
    addEventListener("resize", () => dialog.open && this.#draw());

    const fromMiddle = (event) => {
      const pane = event.target.closest(".pane") ?? this.#panes[0].element;
      const box = pane.getBoundingClientRect();
      return [event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2];
    };
    stage.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.#zoomBy(Math.exp(-event.deltaY / (event.ctrlKey ? 100 : 400)), ...fromMiddle(event));
    }, { passive: false });
    stage.addEventListener("dblclick", (event) => this.#zoomBy(this.#toActual, ...fromMiddle(event)));
    stage.addEventListener("pointerdown", (event) => {
      stage.setPointerCapture(event.pointerId);
      this.#pointers.set(event.pointerId, event);
    });
    stage.addEventListener("pointermove", (event) => this.#drag(event));
    for (const end of ["pointerup", "pointercancel"]) {
      stage.addEventListener(end, (event) => this.#pointers.delete(event.pointerId));
    }
  }

  // One pointer moves the photo; two also zoom it.
  #drag(event) {
    const before = this.#pointers.get(event.pointerId);
    if (!before) return;
    const other = [...this.#pointers.values()].find((one) => one.pointerId !== event.pointerId);
    this.#pointers.set(event.pointerId, event);
    const { zoom, x, y } = this.#view;
    const share = other ? 0.5 : 1;
    this.#moveTo(zoom, x + share * (event.clientX - before.clientX), y + share * (event.clientY - before.clientY));
    if (!other) return;
    const distance = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    this.#zoomBy(distance(event) / Math.max(1, distance(before)));
  }

  static #KEYS = {
    ArrowRight: "next", ArrowLeft: "previous", " ": "flicker", "+": "zoom-in", "=": "zoom-in", "-": "zoom-out",
    z: "actual", o: "one", b: "side", x: "difference",
  };
  static #STEPS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

  #press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey && Viewer.#STEPS[event.key];
    const action = this.actions[Viewer.#KEYS[event.key]];
    if (step) {
      const { zoom, x, y } = this.#view;
      this.#moveTo(zoom, x + 80 * step[0], y + 80 * step[1]);
    } else if (action && !(event.key === " " && event.target.closest("button"))) {
      action();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

// The photos of a group, as both pages draw them.
Viewer.photosIn = (group) => {
  const figures = [...group.querySelectorAll("figure")];
  const hasFirst = Boolean(figures[0]?.querySelector("a.mat img"));
  return figures.filter((figure) => figure.querySelector("a.mat img")).map((figure) => {
    const link = figure.querySelector("a.mat");
    const text = (selector) => figure.querySelector(selector)?.textContent.trim() ?? "";
    const { size: pixels, transform, region } = figure.dataset;
    const [width, height] = pixels.split("x").map(Number);
    // A page that was sent to someone else cannot reach the file, and no browser can show a RAW file.
    const isReachable = link.protocol === location.protocol && "whole" in link.dataset;
    return {
      figure, width, height,
      name: text(".name"),
      facts: [text(".facts"), text(".origin")].filter(Boolean),
      preview: link.querySelector("img").src,
      whole: isReachable ? link.href : null,
      transform: transform && hasFirst ? transform.split(" ").map(Number) : null,
      region: region && hasFirst ? region.split(" ").map(Number) : null,
      isKept: figure.classList.contains("kept"),
    };
  });
};
