//! The style sheet of the report: for screens, phones, dark mode and paper.

/// The page's own style; the charts bring theirs.
pub(super) const STYLE: &str = "\
:root{--ground:#fff;--ink:#1b1f24;--soft:#57606a;--rule:#d8dee4;--panel:#f6f8fa;--link:#0550ae;--bad:#a40e26;
--bad-ground:#fff0f0;--good:#1a6b3c;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--ground:#15191d;--ink:#e6e9ec;--soft:#9aa4ae;--rule:#2c333a;
--panel:#1c2126;--link:#79b8ff;--bad:#ff8f8f;--bad-ground:#2c1a1c;--good:#6fd598}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
main,header,footer{max-width:1120px;margin:0 auto;padding:0 20px}
header{padding-top:36px;padding-bottom:8px}
footer{padding-top:24px;padding-bottom:48px;color:var(--soft);font-size:14px}
h1{font-size:30px;line-height:1.2;margin:0 0 6px}
h2{font-size:23px;line-height:1.25;margin:52px 0 6px;padding-top:18px;border-top:2px solid var(--rule)}
h3{font-size:17px;margin:30px 0 8px}
p{margin:0 0 10px;max-width:75ch}
ul,ol{margin:0 0 10px;padding-left:22px}
li{margin:2px 0;max-width:75ch}
a{color:var(--link);text-underline-offset:2px}
a:focus-visible,summary:focus-visible,.wide:focus-visible{outline:2px solid var(--link);outline-offset:2px}
code{font:.92em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.kicker{color:var(--soft);font-size:14px;margin:0 0 4px}
.lede{font-size:17px}
.soft{color:var(--soft)}
.verdict{border:1px solid var(--rule);border-left:6px solid var(--good);border-radius:4px;padding:12px 16px;
margin:14px 0;background:var(--panel)}
.verdict.bad{border-left-color:var(--bad);background:var(--bad-ground)}
.verdict p:last-child,.verdict ul:last-child{margin-bottom:0}
.verdict p,.verdict li{max-width:none}
.verdict strong{font-weight:650}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:0 0 12px}
.facts dt{color:var(--soft)}
.facts dd{margin:0}
.wide{overflow-x:auto;margin:0 0 16px}
table{border-collapse:collapse;width:100%;font-size:14.5px;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;padding:6px 12px 6px 0;border-bottom:1px solid var(--rule)}
th{color:var(--soft);font-weight:550;font-size:13.5px}
td.n,th.n{text-align:right;white-space:nowrap}
td.k{white-space:nowrap}
td.v{white-space:nowrap;font-weight:650}
tr.fail td.v{color:var(--bad)}
tr.pass td.v{color:var(--good);font-weight:550}
tr.fail{background:var(--bad-ground)}
tr.fail td:first-child{box-shadow:inset 4px 0 var(--bad);padding-left:10px}
td small{color:var(--soft);font-size:13px}
td.k small{white-space:normal}
td:first-child{min-width:7em}
figure{margin:0 0 26px}
figcaption{color:var(--soft);font-size:14px;margin-top:6px;max-width:85ch}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:22px 34px}
.panels.one{max-width:560px}
details{margin:0 0 16px}
summary{cursor:pointer;color:var(--link)}
nav ol{columns:2;column-gap:40px}
@media (max-width:640px){
body{font-size:15.5px}main,header,footer{padding-left:16px;padding-right:16px}h1{font-size:25px}h2{font-size:20px}
nav ol{columns:1}.facts{grid-template-columns:1fr;gap:0}.facts dd{margin-bottom:8px}
table.cards,.cards tbody,.cards tr,.cards td{display:block}
.cards thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.cards tr{border-bottom:1px solid var(--rule);padding:10px 0}
.cards tr.fail{padding-left:12px;padding-right:8px;box-shadow:inset 4px 0 var(--bad)}
.cards tr.fail td:first-child{box-shadow:none;padding-left:0}
.cards td{border:0;padding:1px 0;text-align:left;white-space:normal;min-width:0}
.cards td br{display:none}.cards td small::before{content:'\\2003'}
.cards td[data-is]::before{content:attr(data-is) ': ';color:var(--soft)}
}
@media print{
body{background:#fff;color:#000;font-size:11pt}main,header,footer{max-width:none;padding:0}
h2{break-before:page}h2,h3{break-after:avoid}figure,tr,.verdict{break-inside:avoid}
.panels{grid-template-columns:1fr 1fr}a{color:inherit}.wide{overflow:visible}
}
";
