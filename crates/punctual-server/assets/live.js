// Makes the pages of the dashboard live: a page is fetched again when the server says that something changed.
// Every page works without this script. It adds its own buttons, so that no button is shown that does nothing.
(() => {
'use strict';
const here = new URL(document.currentScript.src), to = path => new URL(path, here).href;
const root = document.documentElement;
// Times in ms. A page is fetched once a second at most, and less often from a server that needs long for it.
const GAP = 1000, GAP_MAX = 60000, SHARE = 10, IDLE = 30000, TIMEOUT = 20000, SAY = 10000;
const THEMES = ['auto', 'light', 'dark'];
const stored = (name, value) => {
  // A browser can refuse to store anything.
  try { return value === undefined ? localStorage.getItem(name) : localStorage.setItem(name, value); } catch { return null; }
};
let theme = stored('punctual-theme');
if (!THEMES.includes(theme)) theme = 'auto';
const dress = () => { if (theme === 'auto') delete root.dataset.theme; else root.dataset.theme = theme; };
// Before the first paint.
dress();

const HELP = [['g o', 'Overview'], ['g t', 'Timeline'], ['g j', 'Jobs'], ['g q', 'Queues'], ['g f', 'Failures'], ['g s', 'Schedules'], ['g w', 'Workers'],
  ['g p', 'Operations'], ['g a', 'Activity'],
  ['/', 'Go to the filter'], ['j k', 'Next and previous row'], ['x', 'Select the row'], ['Enter', 'Open the row'],
  ['Space', 'Pause or resume updates'], ['t', 'Theme: auto, light, dark'], ['?', 'This help']];
const GO = { o: '.', t: 'upcoming', j: 'jobs', q: 'queues', f: 'failures', s: 'schedules', w: 'workers', p: 'operations', a: 'activity' };

// ── morphing ──

// The identity of an element among its siblings.
const key = node => (node.nodeType === 1 && node.id) || '';
const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
// A field that a person has changed, or is in, stays as it is. So does a selected job: its value says what it was when it
// was selected, and the server leaves it alone if it has changed since.
const isKept = a => a.nodeName === 'SELECT' || ((a.nodeName === 'INPUT' || a.nodeName === 'TEXTAREA')
  && (a.type === 'checkbox' ? a.checked : a === document.activeElement || a.value !== a.defaultValue));

const morph = (a, b) => {
  if (a.nodeType !== 1) { if (a.data !== b.data) a.data = b.data; return; }
  if (isKept(a)) return;
  const own = name => name === 'open' && a.nodeName === 'DETAILS';
  for (const { name } of [...a.attributes]) if (!b.hasAttribute(name) && !own(name)) a.removeAttribute(name);
  for (const { name, value } of b.attributes) if (a.getAttribute(name) !== value && !own(name)) a.setAttribute(name, value);
  const wanted = new Set([...b.children].map(key)), keyed = new Map();
  for (const child of [...a.children]) {
    if (key(child) && !wanted.has(key(child))) child.remove();
    else keyed.set(key(child), child);
  }
  let at = a.firstChild;
  for (const want of [...b.childNodes]) {
    const have = key(want) ? keyed.get(key(want)) : at;
    if (have && alike(have, want)) {
      if (have === at) at = at.nextSibling; else a.insertBefore(have, at);
      morph(have, want);
    } else a.insertBefore(document.adoptNode(want), at);
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
};

document.addEventListener('DOMContentLoaded', () => {
const main = document.getElementById('main');
const isLive = main.hasAttribute('data-live');
document.querySelector('.bar').insertAdjacentHTML('beforeend', '<div class="tools" role="group" aria-label="Display">'
  + (isLive ? '<button type="button" class="state"><span></span></button>' : '')
  + '<button type="button" class="theme"></button><button type="button" class="help">Keys <kbd>?</kbd></button></div>');
document.body.insertAdjacentHTML('beforeend', '<p class="hidden" aria-live="polite"></p><dialog aria-labelledby="keys"><h2 id="keys">Keys</h2><dl>'
  + HELP.map(([keys, words]) => `<dt>${keys.split(' ').map(k => `<kbd>${k}</kbd>`).join(' ')}</dt><dd>${words}</dd>`).join('')
  + '</dl><form method="dialog"><button>Close</button></form></dialog>');
const $ = of => document.querySelector(of);
const say = $('body > [aria-live]'), dialog = $('dialog'), button = $('.tools .state');

const nextTheme = () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  stored('punctual-theme', theme);
  dress(); paint();
};

// ── updates ──

let source, timer, paused = false, failures = 0, busy = false, due = false, last = Date.now(), gap = GAP, said = Date.now(), words = '';
const paint = () => {
  $('.tools .theme').textContent = `Theme: ${theme}`;
  if (!isLive) return;
  const state = paused ? 'paused' : failures ? 'disconnected' : 'live';
  button.dataset.state = state;
  button.firstChild.textContent = state[0].toUpperCase() + state.slice(1);
  button.setAttribute('aria-label', `Updates: ${state}. ${paused ? 'Resume' : 'Pause'}`);
};
const every = () => Math.max(gap, +main.dataset.every || IDLE);
const isOff = () => !isLive || paused || document.hidden;

// Says to people who do not see the page what is on it now.
const summarise = () => {
  const parts = [...main.querySelectorAll('.counters a, .tabs a:has(.count)')].map(of => of.textContent.trim().replace(/\s+/g, ' '));
  const now = parts.join(', ') || main.querySelector('h1')?.textContent || '';
  if (now === words || Date.now() - said < SAY) return;
  words = now; said = Date.now(); say.textContent = `Updated: ${now}`;
};

const plan = ms => { clearTimeout(timer); timer = setTimeout(refresh, ms); };
const failed = () => {
  source?.close(); source = undefined;
  failures = Math.min(failures + 1, 6);
  // Spread, so that all tabs do not come back at once.
  if (!isOff()) plan(Math.min(GAP * 2 ** failures, GAP_MAX) * (.5 + Math.random() / 2));
  paint();
};
const changed = () => {
  due = true;
  if (!busy && !isOff()) plan(Math.max(0, last + gap - Date.now()));
};
const refresh = async () => {
  if (isOff() || busy) return;
  busy = true; due = false; last = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { accept: 'text/html' }, signal: AbortSignal.timeout(TIMEOUT) });
    // A redirect leads to the login.
    if (answer.redirected || answer.status >= 500) throw new Error('refused');
    const page = new DOMParser().parseFromString(await answer.text(), 'text/html'), now = page.getElementById('main');
    if (!now) throw new Error('not a page');
    if (!isOff()) {
      const focus = document.activeElement;
      now.setAttribute('data-live', '');
      morph(main, now);
      if (focus !== document.activeElement && focus.isConnected) focus.focus({ preventScroll: true });
      document.title = page.title;
      summarise();
    }
    gap = Math.max(GAP, SHARE * (Date.now() - last));
    listen(); paint();
    // Ages on the page change by themselves. So does an operation, on a page that says how often.
    plan(due ? gap : every());
  } catch { failed(); }
  busy = false;
};
const listen = () => {
  if (source || isOff()) return;
  source = new EventSource(to('events'));
  source.addEventListener('change', changed);
  // A page that loads says nothing of the stream: a server can have no room for it.
  source.onopen = () => { failures = 0; paint(); };
  source.onerror = failed;
};
const stop = () => { clearTimeout(timer); source?.close(); source = undefined; };
const turn = () => { if (isOff()) stop(); else if (!source) { listen(); changed(); } paint(); };
const pause = () => { paused = !paused; failures = 0; turn(); };

// ── keys ──

const rows = () => [...main.querySelectorAll('tbody tr')].filter(row => row.querySelector('th a, td a'));
const move = by => {
  const all = rows(), at = all.indexOf(document.activeElement.closest('tr'));
  const next = all[at < 0 ? 0 : Math.min(Math.max(at + by, 0), all.length - 1)];
  next?.querySelector('th a, td a').focus();
};
let going = 0;
document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || dialog.open) return;
  const on = event.target, isBox = on.type === 'checkbox';
  if (on.isContentEditable || (on.matches('input, textarea, select') && !isBox)) return;
  const goes = Date.now() - going < 1500 && GO[event.key];
  going = 0;
  if (goes) location.assign(goes === '.' ? $('.brand').href : to(goes));
  else if (event.key === 'g') { going = Date.now(); return; }
  else if (event.key === '/' && $('#filter')) { $('#filter').focus(); $('#filter').select(); }
  else if (event.key === 'j') move(1);
  else if (event.key === 'k') move(-1);
  else if (event.key === 'x') on.closest('tr')?.querySelector('input[type=checkbox]')?.click();
  else if (event.key === 't') nextTheme();
  else if (event.key === '?') dialog.showModal();
  else if (event.key === ' ' && isLive && !on.closest('a, button, summary, input')) pause();
  else return;
  event.preventDefault();
});
$('.tools .theme').addEventListener('click', nextTheme);
$('.tools .help').addEventListener('click', () => dialog.showModal());
button?.addEventListener('click', pause);
document.addEventListener('visibilitychange', turn);
addEventListener('pagehide', stop);
addEventListener('pageshow', turn);
paint(); listen();
});
})();
