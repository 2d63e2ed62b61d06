"""What a browser finds on pages: a script opens each page in a frame, and looks at it."""

import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import threading

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PAGE = """<!doctype html><body><script>
const pages = %s, found = {};
const wait = ms => new Promise(done => setTimeout(done, ms));
async function opened(page, width) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 800; frame.src = page;
  const loaded = new Promise(done => frame.onload = done);
  document.body.append(frame);
  await loaded; await wait(300);
  return frame;
}
%s
(async () => {
  for (const page of pages) await look(page);
  const text = document.createElement("pre");
  text.id = "found"; text.textContent = JSON.stringify(found);
  document.body.append(text);
})();
</script></body>"""
# faint(document) returns {pale: {what: contrast} of the texts that are too pale, count: number of texts}
CONTRAST = """
const brush = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true}), known = {};
function parsed(colour) {  // [red, green, blue, opacity], 0 to 1
  if (!(colour in known)) {
    brush.clearRect(0, 0, 1, 1); brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1);
    known[colour] = [...brush.getImageData(0, 0, 1, 1).data].map(part => part / 255);
  }
  return known[colour];
}
const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
const linear = part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
const luminance = rgb => 0.2126 * linear(rgb[0]) + 0.7152 * linear(rgb[1]) + 0.0722 * linear(rgb[2]);
function contrast(one, other) {  // WCAG 2.1, 1.4.3
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}
function behind(element) {  // the colour on which its text stands
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.push(parsed(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((below, top) => over(top, below), [1, 1, 1]);
}
function named(element) {
  const parts = [];
  for (let at = element; at && parts.length < 3; at = at.parentElement)
    parts.unshift(at.localName + [...at.classList].slice(0, 3).map(name => "." + name).join(""));
  return parts.join(" ");
}
const visible = element => element.checkVisibility({opacityProperty: true, visibilityProperty: true})
  && element.getBoundingClientRect().width > 2 && element.getBoundingClientRect().height > 2;
function faint(shown) {  // {what: contrast} of texts that are too pale
  const pale = {}, texts = shown.createTreeWalker(shown.body, NodeFilter.SHOW_TEXT);
  let count = 0;
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.closest("script, style, noscript, template, svg, [disabled]")) continue;
    if (!visible(element)) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize), ground = behind(element);
    let opacity = 1;
    for (let at = element; at; at = at.parentElement) opacity *= getComputedStyle(at).opacity;
    const ink = parsed(style.color), least = size >= 24 || size >= 18.66 && style.fontWeight >= 700 ? 3 : 4.5;
    const ratio = contrast(over([...ink.slice(0, 3), ink[3] * opacity], ground), ground);
    count++;
    if (ratio < least) pale[named(element) + ": " + texts.currentNode.data.trim().slice(0, 20)] = ratio.toFixed(2);
  }
  return {pale, count};
}
"""
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=600000 --window-size=1280,900 --dump-dom"
)


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *given):
        pass


def browsed(folder, script, pages, profile):
    """Return what a script finds on pages in a folder, by page. It is a function `look(page)`, which fills `found[page]`."""
    if BROWSER is None:
        pytest.skip("needs Chromium")
    (folder / "_look.html").write_text(PAGE % (json.dumps(pages), script), encoding="utf-8")
    handler = functools.partial(Silent, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        command = [BROWSER, *OPTIONS.split(), f"--user-data-dir={profile}", f"http://127.0.0.1:{server.server_port}/_look.html"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    finally:
        server.shutdown()
        (folder / "_look.html").unlink()
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert text, done.stderr[-2000:]
    return json.loads(html.unescape(text[1]))
