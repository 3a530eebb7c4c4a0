"""The style sheet of the page: light, dark, and on a phone."""

STYLE = """\
:root {
  color-scheme: light dark;
  --page: #fbfbfc; --card: #ffffff; --ink: #1c2127; --soft: #5c6670;
  --line: #dfe3e8; --code: #eef1f4;
  --error: #b3261e; --warning: #8f5b00; --info: #1d5fa8; --clean: #1b7340;
  --error-back: #fdecea; --warning-back: #fff4dc; --info-back: #e8f1fb;
  --clean-back: #e6f5ec;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15181c; --card: #1d2126; --ink: #e6e9ed; --soft: #9aa5b1;
    --line: #333a42; --code: #2a3037;
    --error: #ff8a80; --warning: #f4c05e; --info: #86bdf5; --clean: #7fd6a0;
    --error-back: #3a1d1b; --warning-back: #37290f; --info-back: #16293d;
    --clean-back: #14301f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
}
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.5rem 0 1rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; }
h3 { font-size: 0.95rem; font-weight: 600; margin: 0 0 0.35rem; }
h1, h3, dd, p { overflow-wrap: anywhere; }
p { margin: 0.2rem 0; }
code {
  font: 0.88em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  background: var(--code); border-radius: 4px; padding: 0.1em 0.3em;
}
.verdict {
  font-size: 1.1rem; font-weight: 600; margin: 0 0 1.2rem;
  padding: 0.9rem 1.1rem; border-radius: 10px; border: 1px solid;
}
.verdict.error { color: var(--error); background: var(--error-back); }
.verdict.warning { color: var(--warning); background: var(--warning-back); }
.verdict.info { color: var(--clean); background: var(--clean-back); }
.verdict.clean { color: var(--clean); background: var(--clean-back); }
dl {
  display: grid; gap: 0.3rem 1.6rem; margin: 0 0 1rem;
  grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr));
}
dt { color: var(--soft); font-size: 0.82rem; }
dd { margin: 0; }
article {
  background: var(--card); border: 1px solid var(--line);
  border-left: 5px solid; border-radius: 8px;
  padding: 0.75rem 1rem; margin: 0.7rem 0;
}
article.error { border-left-color: var(--error); }
article.warning { border-left-color: var(--warning); }
article.info { border-left-color: var(--info); }
.level {
  font-size: 0.75rem; letter-spacing: 0.04em; text-transform: uppercase;
  border-radius: 4px; padding: 0.15em 0.5em; margin-right: 0.2em;
}
.error .level { color: var(--error); background: var(--error-back); }
.warning .level { color: var(--warning); background: var(--warning-back); }
.info .level { color: var(--info); background: var(--info-back); }
.why, .note { color: var(--soft); }
.note { font-size: 0.9rem; margin-bottom: 0.5rem; }
.remedy::before { content: "\\2192\\00a0"; color: var(--soft); }
.scroll { overflow: auto; max-height: 32rem; }
section > .scroll {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px;
}
table { border-collapse: separate; border-spacing: 0; width: 100%; }
th, td {
  padding: 0.35rem 0.7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); font-size: 0.88rem;
}
th {
  position: sticky; top: 0; background: var(--code); white-space: nowrap;
  font-weight: 600;
}
tr:last-child td { border-bottom: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; }
figure { margin: 2.2rem 0 0; }
figure > .scroll { max-height: none; }
figcaption { font-size: 1.15rem; font-weight: 700; margin-bottom: 0.4rem; }
svg { display: block; width: 100%; min-width: 34rem; height: auto; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; }
@media print { .scroll { max-height: none; overflow: visible; } }
"""
