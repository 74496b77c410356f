// The pages work as plain links and forms. This adds: no flash between pages, the keyboard, the enlarged view, rules
// that can be dragged, and what other tabs do.

const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
document.documentElement.classList.add("js");

// --- From page to page: only <main> and the title change, so an enlarged view stays open. -----------------------------

let latest = 0;  // the number of the newest request; answers to older ones come too late
let arrived = 0;

const SILENT = "The review server does not answer. Start clip-client review again; your decisions are saved.";
const SEARCHING = "Searching. The first search takes some seconds, because it opens the model.";

async function load(url, { push = true, quiet = false, replace = false } = {}) {
  const request = ++latest;
  const isSearch = !quiet && /\/search\?./.test(url);
  const waiting = isSearch && setTimeout(() => request === latest && tell(SEARCHING), 500);
  const response = await fetch(url, { headers: { Accept: "text/html" } }).catch(() => null);
  const text = await response?.text();
  clearTimeout(waiting);
  if (request !== latest) return;
  arrived = request;
  if (!response) return tell(SILENT);
  if (response.headers.get("Content-Type") === "application/json") return tell(JSON.parse(text).error);
  const page = new DOMParser().parseFromString(text, "text/html");
  if (!one("main", page)) return location.assign(url);
  const { scrollY } = window;
  const { version } = one("main", page).dataset;
  // A form with the focus stays, because a person may be typing in it.
  const isPart = quiet && one(".filters:focus-within") && one(".results", page);
  for (const part of isPart ? ["nav", ".overview", ".results"] : ["nav", "main"]) one(part).replaceWith(one(part, page));
  one("main").dataset.version = version;
  document.title = page.title;
  if (push && response.url !== location.href) history[replace ? "replaceState" : "pushState"](null, "", response.url);
  scrollTo(0, quiet ? scrollY : 0);
  if (!quiet) {
    tell("");
    one("h1").focus({ preventScroll: true });
  }
  arrive();
}

// Sends JSON or a photo; returns the answer, or null if the server refused, after saying why.
async function send(url, body = {}) {
  const data = body instanceof File ? body : JSON.stringify(body);
  const response = await fetch(url, { method: "POST", body: data }).catch(() => null);
  if (!response) return void tell(SILENT);
  const answer = await response.json().catch(() => ({ error: "The server could not do it; the terminal shows why." }));
  if (!answer.error) return answer;
  tell(answer.error);
  return null;
}

function tell(message) {
  const box = one(".notice");
  box.textContent = message;
  // As a popover it is above the enlarged view, too.
  box.togglePopover(false);
  box.togglePopover(Boolean(message));
}

// What has to happen on each page, however it was reached.
function arrive() {
  const group = one(".group.is-open");
  if (viewer.dialog.open) {
    const photos = group ? Viewer.photosIn(group) : [];
    if (photos.length) viewer.open(photos);
    else viewer.dialog.close();
  }
  for (const form of all("[data-submit=choose]")) summarise(form);
  for (const list of all(".sortable")) sortable(list);
  for (const form of all("form[data-count]")) {
    const folder = new URLSearchParams(location.search).get("prefer");
    if (folder) one("[data-rule='folder='] input", form).value = folder;
    count(form);
  }
}

addEventListener("popstate", () => load(location.href, { push: false }));

document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  const control = event.target.closest("[data-do]");
  if (control && actions[control.dataset.do]) {
    event.preventDefault();
    return actions[control.dataset.do](control);
  }
  const link = event.target.closest("a[href]");
  if (!link || link.origin !== location.origin || link.target || link.hash) return;
  event.preventDefault();
  if (link.matches("a.mat")) enlarge(link.closest("figure"));
  else load(link.href);
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  event.preventDefault();
  if (!form.dataset.submit) {
    const url = new URL(form.action);
    url.search = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    return load(url.href, form.matches(".words") ? {} : { quiet: true, replace: true });
  }
  alone(() => submits[form.dataset.submit](form, event.submitter));
});

// A picture that the server cannot make, because the file is gone or damaged.
document.addEventListener("error", (event) => {
  if (!event.target.matches?.("main img")) return;
  const note = document.createElement("span");
  note.className = "gone";
  note.textContent = event.target.closest(".thumbs") ? "?" : "can no longer be opened";
  event.target.replaceWith(note);
}, true);

// Until the page after a decision is there, another key must not decide about the same group or the next one.
let isSending = false;

async function alone(act) {
  if (isSending) return tell("Wait until the last decision is saved.");
  isSending = true;
  await act().finally(() => (isSending = false));
}

// --- Decisions. -----------------------------------------------------------------------------------------------------

const decided = [];  // where the decisions of this tab were made, to return there when they are undone

const submits = {
  async choose(form, button) {
    const what = button.value;
    const most = Number(form.dataset.most);
    const keep = Number(one("[name=keep]:checked", form).value);
    const body = what === "keep" ? { what, keep, most, move: marked(form).map((box) => Number(box.value)) } : { what };
    const here = location.href;
    if (!(await send(form.action, body))) return;
    decided.push(here);
    await load(form.dataset.next);
    if (button.dataset.said) tell(button.dataset.said);
  },
  async plan(form) {
    const merge = one("[name=merge_metadata]", form);
    if (await send("plan", merge ? { merge_metadata: merge.checked } : {})) await load("plan");
  },
  async apply(form) {
    if (await send("apply", { plan: Number(form.dataset.plan) })) await load("plan");
  },
  async rules(form) {
    const { tier, text } = form.elements;
    const body = { rules: rulesOf(form), tier: tier.value, text: text.value };
    if (await send("rules/choose", body)) await load("./");
  },
  async restore(form) {
    if (await send(form.action)) await load("history");
  },
};

// What is kept does not move. Its hidden mark stays as it was, and counts again once another photo is kept.
const marked = (form) => all("figure:not(.kept) [name=move]:checked", form);

document.addEventListener("change", (event) => {
  if (event.target.name === "merge_metadata") submits.plan(event.target.form);
  const form = event.target.closest("[data-submit=choose]");
  if (!form) return;
  form.classList.add("is-changed");
  summarise(form);
});

function summarise(form) {
  for (const figure of all("figure", form)) figure.classList.toggle("kept", one("[name=keep]", figure).checked);
  const kept = one("[name=keep]:checked", form);
  const moving = marked(form).length;
  const button = one("[value=keep]", form);
  const others = moving === 1 ? "1 other" : `${moving} others`;
  one("span", button).textContent = moving ? `Keep ${Number(kept.value) + 1}, move ${others}` : "Nothing moves";
  button.disabled = !moving;
  // Enter moves nothing that is not marked: if nothing is, it keeps all.
  const keepAll = one("[value=keep-all]", form);
  keepAll.dataset.key = moving ? "a" : "a Enter";
  one("kbd", keepAll).textContent = moving ? "a" : "Enter";
  doubts(form, kept.value);
  for (const photo of viewer.photos) photo.isKept = photo.figure.classList.contains("kept");
  if (viewer.dialog.open) viewer.show();
}

// What would stay although it is marked to move, or was not compared with the photo that is kept.
let asked = 0;

async function doubts(form, keep) {
  const chosen = marked(form).map((box) => ["move", box.value]);
  const request = ++asked;
  const query = new URLSearchParams([["keep", keep], ...chosen]);
  const response = await fetch(`${form.dataset.plan}?${query}`).catch(() => null);
  const reasons = response?.ok ? await response.json() : {};
  if (request !== asked) return;
  for (const figure of all("figure", form)) {
    one(".refused", figure).textContent = reasons[figure.dataset.place] ?? "";
  }
}

// --- Search by a photo: chosen, or dropped onto the page. ------------------------------------------------------------

async function searchBy(file) {
  const answer = await send(one("[data-upload]").dataset.upload, file);
  if (answer) await load(`search?photo=${answer.photo}`);
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-upload]") && event.target.files.length) searchBy(event.target.files[0]);
});
document.addEventListener("dragover", (event) => {
  if (one("[data-upload]") && event.dataTransfer.types.includes("Files")) event.preventDefault();
});
document.addEventListener("drop", (event) => {
  if (!one("[data-upload]") || !event.dataTransfer.files.length) return;
  event.preventDefault();
  searchBy(event.dataTransfer.files[0]);
});

// --- The enlarged view. ---------------------------------------------------------------------------------------------

const viewer = new Viewer(one(".viewer"));

function enlarge(figure = one(".group.is-open .kept") ?? one(".group.is-open figure")) {
  const photos = figure ? Viewer.photosIn(figure.closest(".group")) : [];
  if (!photos.length) tell("None of these photos can be shown.");
  else viewer.open(photos, Math.max(0, photos.findIndex((photo) => photo.figure === figure)));
}

viewer.dialog.addEventListener("show", ({ detail: { photo } }) => {
  const keep = one("[data-do=keep]", viewer.dialog);
  keep.hidden = !one("[name=keep]", photo.figure);
  keep.disabled = photo.isKept;
});

const actions = {
  undo: () => alone(async () => {
    if (await send("undo")) await load(decided.pop() ?? location.href);
  }),
  enlarge: () => enlarge(),
  // The page with more photos has what was chosen on this one.
  more: async (link) => {
    const inputs = all("figure input", one(".group.is-open"));
    const chosen = new Map(inputs.map((input) => [input.name + input.value, input.checked]));
    const isChanged = Boolean(one("form.is-changed"));
    await load(link.href, { replace: true, quiet: true });
    const form = one("[data-submit=choose]");
    if (!form) return;  // the decision has been applied
    for (const input of all("figure input", form)) input.checked = chosen.get(input.name + input.value) ?? input.checked;
    form.classList.toggle("is-changed", isChanged);
    summarise(form);
  },
  keep: () => viewer.dialog.open && one("[name=keep]", viewer.current.figure).click(),
  "use-rules": (button) => useRules(button.form, JSON.parse(button.dataset.rules)),
  "save-rules": (button) => saveRules(button.form.elements.name.value.trim(), rulesOf(button.form)),
  "delete-rules": (button) => saveRules(button.dataset.name, []),
  help: () => help(),
  close: (control) => control.closest("dialog").close(),
};

// --- The keyboard: every control that has data-key is pressed by these keys, and listed by "?". ---------------------

const LABELS = { ArrowRight: "→", ArrowLeft: "←", ArrowUp: "↑", ArrowDown: "↓", Enter: "Enter", Escape: "Esc" };

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const isTyping = event.target.matches("input:not([type=radio], [type=checkbox]), textarea, select");
  if (isTyping) return event.key === "Escape" ? event.target.blur() : undefined;
  // Enter and Space belong to what has the focus.
  if (event.key === "Enter" && event.target.closest("a, button, summary, input")) return;
  const open = one("dialog[open]:not(.viewer)");
  const controls = all("[data-key]", open ?? document)
    .filter((item) => item.dataset.key.split(" ").includes(event.key) && !item.closest("dialog:not([open])"));
  const control = controls.find((item) => !item.disabled && !item.hidden);
  const why = controls.findLast((item) => item.dataset.why)?.dataset.why;
  if (!control) return why && tell(why);
  event.preventDefault();
  tell("");
  if (control.matches("input[type=search]")) control.select();
  else control.click();
});

function help() {
  const isShown = (item) => item.dataset.hint && !item.disabled && !item.closest("dialog, [hidden]");
  const made = (tag, ...children) => {
    const element = document.createElement(tag);
    element.append(...children);
    return element;
  };
  const rows = all("[data-key]").filter(isShown).map((item) => {
    const keys = item.dataset.key.split(" ").flatMap((key) => [made("kbd", LABELS[key] ?? key), " "]);
    return made("tr", made("td", ...keys), made("td", item.dataset.hint));
  });
  one(".help .on-this-page").replaceChildren(...rows);
  for (const part of all(".help .of-photos")) part.hidden = !one("a.mat");
  one(".help .of-choice").hidden = !one("[data-submit=choose]");
  one(".help").showModal();
}

// --- Rules: their order, and how many groups they would decide. -----------------------------------------------------

function sortable(list) {
  let dragged = null;
  const changed = () => list.dispatchEvent(new Event("input", { bubbles: true }));
  list.addEventListener("dragstart", (event) => {
    dragged = event.target.closest("li");
    dragged.classList.add("is-dragged");
    event.dataTransfer.effectAllowed = "move";
  });
  list.addEventListener("dragover", (event) => {
    const over = event.target.closest("li");
    if (!dragged || !over) return;
    event.preventDefault();
    const box = over.getBoundingClientRect();
    if (over !== dragged) over[event.clientY > box.top + box.height / 2 ? "after" : "before"](dragged);
  });
  list.addEventListener("dragend", () => {
    dragged?.classList.remove("is-dragged");
    dragged = null;
    changed();
  });
  list.addEventListener("click", (event) => {
    const button = event.target.closest("[data-move]");
    if (!button) return;
    const item = button.closest("li");
    const up = button.dataset.move === "up";
    const other = up ? item.previousElementSibling : item.nextElementSibling;
    if (other) other[up ? "before" : "after"](item);
    button.focus();
    changed();
  });
}

// The rules that are in use, in their order, as --keep takes them.
const rulesOf = (form) => all("li", form).flatMap((item) => {
  const input = one("input", item);
  if (input.type === "checkbox") return input.checked ? [item.dataset.rule] : [];
  return input.value.trim() ? [item.dataset.rule + input.value.trim()] : [];
});

let counts = 0;

async function count(form) {
  const request = ++counts;
  const { tier, text } = form.elements;
  const query = new URLSearchParams([["tier", tier.value], ["text", text.value],
    ...rulesOf(form).map((rule) => ["rule", rule])]);
  const box = one(".counts", form);
  // Each answer comes soon, and the next one goes on from its figures, so a person sees them grow.
  let before = "";
  do {
    const response = await fetch(`${form.dataset.count}?${query}&${before}`).catch(() => null);
    const text = await response?.text();
    if (!text || request !== counts || !form.isConnected) return;
    box.innerHTML = text;
    before = one("[data-goes-on]", box)?.dataset.goesOn ?? "";
    box.ariaBusy = String(Boolean(before));
  } while (before);
}

async function saveRules(name, rules) {
  if (await send("rules/save", { name, rules })) load(location.href, { push: false, quiet: true });
}

function useRules(form, rules) {
  const list = one(".sortable", form);
  for (const input of all("input", list)) Object.assign(input, input.type === "checkbox" ? { checked: false } : { value: "" });
  for (const rule of rules.toReversed()) {
    const [, name, value] = rule.match(/^([^=]+=?)(.*)$/s);
    let item = all("li", list).find((entry) => entry.dataset.rule === name);
    if (!item) continue;
    if (value && one("input", item).value) item = item.cloneNode(true);  // a second folder
    Object.assign(one("input", item), value ? { value } : { checked: true });
    list.prepend(item);
  }
  count(form);
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form");
  if (form?.dataset.count) count(form);
  else if (form?.matches(".filters")) form.requestSubmit();
});

// --- Other tabs, and a search or a move in progress: the server counts changes, and a page that shows an older count is
// loaded again, unless a person is typing in it. ---------------------------------------------------------------------

async function follow() {
  const response = document.hidden ? null : await fetch("state").catch(() => null);
  if (response?.ok) {
    const { version } = await response.json();
    const isStale = version !== Number(one("main").dataset.version);
    const isBusy = isSending || latest !== arrived || one("form.is-changed, .panel:focus-within, .words:focus-within, dialog[open]:not(.viewer)");
    if (isStale && !isBusy) await load(location.href, { push: false, quiet: true });
    else if (one(".notice").textContent === SILENT) tell("");
  } else if (!document.hidden) tell(SILENT);
  setTimeout(follow, 1000);
}

arrive();
follow();
