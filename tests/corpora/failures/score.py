#!/usr/bin/env python3
"""Score failure-diagnosis predictions.  Pure standard library.

usage: score.py PRED.jsonl [--split dev|own|later|all] [--lenient] [--verbose] [--json]

One JSON object a line:
 {"id": "FD01", "category": "GPU_OOM", "culpable": "user_config", "action": "retry_with_changes",
  "evidence": {"file": "stdout.log", "line": 56},        or  "evidence_text": "...quoted line..."
  "culprit_node": "hgx-07",  "resume_from": "/path/..."}
A missing case or field counts as wrong.  Strict = first answer only; lenient = *_accept lists too.
"""
import argparse, collections, glob, json, os, re, sys
HERE = os.path.dirname(os.path.abspath(__file__))
FIELDS = ["category", "culpable", "action", "evidence", "node", "resume_from"]

def load_labels(split):
    out = {}
    for sp in (["dev", "own", "later"] if split == "all" else [split]):
        for p in sorted(glob.glob(os.path.join(HERE, sp, "*", "label.json"))):
            with open(p, encoding="utf-8") as fh: d = json.load(fh)
            out[d["id"]] = d
    return out

def load_preds(path):
    out = {}
    with (sys.stdin if path == "-" else open(path, encoding="utf-8")) as fh:
        for n, ln in enumerate(fh, 1):
            if ln.strip():
                d = json.loads(ln)
                if not isinstance(d, dict) or "id" not in d: sys.exit(f"line {n}: need an object with 'id'")
                if d["id"] in out: print(f"warning: duplicate id {d['id']} (line {n}); the later one counts", file=sys.stderr)
                out[d["id"]] = d
    return out

def norm(x): return re.sub(r"\s+", " ", str(x)).strip().lower()
def code(x): return norm(x).replace("-", "_").replace(" ", "_")

def hit(pred, rec, others=()):
    """does the prediction point at this record?  +-1 line, unless it names exactly another marked line"""
    ev = pred.get("evidence")
    if isinstance(ev, dict) and isinstance(ev.get("line"), int) and not isinstance(ev.get("line"), bool):
        fn, ln = ev.get("file", "stdout.log"), ev["line"]
        if fn == rec["file"] and ln == rec["line"]: return True
        if fn == rec["file"] and abs(ln - rec["line"]) <= 1 and not any(o["file"] == fn and o["line"] == ln for o in others): return True
    t = pred.get("evidence_text") or (ev.get("text") if isinstance(ev, dict) else ev if isinstance(ev, str) else None)
    if isinstance(t, str):
        a, b = norm(t), norm(rec["text"])
        if a == b or (len(a) >= 20 and a in b) or (len(b) >= 20 and b in a): return True
    return False

def node_ok(p, want):
    if not isinstance(p, str): return False
    p, w = p.strip().lower(), want.lower()
    return p == w or p.split(".")[0] == w or w.split(".")[0] == p

def path_ok(p, want):
    if not isinstance(p, str): return False
    a, b = p.strip().rstrip("/"), want.rstrip("/")
    return a == b or (len(a) > 3 and (b.endswith("/" + a) or a.endswith("/" + b.lstrip("./")))) or a == b.split(" ")[0]

def score_one(lab, pred, lenient):
    r = {}
    for f in ("category", "culpable", "action"):
        ok = [lab[f]] + (lab[f + "_accept"] if lenient else [])
        r[f] = code(pred.get(f)) in [code(x) for x in ok] if pred.get(f) is not None else False
    recs = [lab["evidence"]] + (lab["evidence_accept"] if lenient else [])
    mis, allev = lab["misleading"], [lab["evidence"]] + lab["evidence_accept"]
    r["evidence"] = any(hit(pred, x, mis) for x in recs)
    r["_misled"] = not any(hit(pred, x, mis) for x in allev) and any(hit(pred, x, allev) for x in mis)
    if lab["culprit"]["node"]: r["node"] = node_ok(pred.get("culprit_node"), lab["culprit"]["node"])
    if lab["resume_from"]: r["resume_from"] = path_ok(pred.get("resume_from"), lab["resume_from"])
    return r

def summarise(labels, preds, lenient):
    tot, good = collections.Counter(), collections.Counter()
    per_cat, rows, misled, danger = collections.defaultdict(lambda: [0, 0]), {}, 0, 0
    conf = collections.Counter()
    for cid, lab in labels.items():
        pred = preds.get(cid, {})
        r = score_one(lab, pred, lenient); rows[cid] = r; misled += r["_misled"]
        for f in FIELDS:
            if f in r: tot[f] += 1; good[f] += bool(r[f])
        per_cat[lab["category"]][0] += r["category"]; per_cat[lab["category"]][1] += 1
        if pred and not r["category"]: conf[(lab["category"], code(pred.get("category", "none")).upper())] += 1
        # harmful action: cordons a node although nothing is wrong with one, or gives up on a recoverable job
        a = code(pred.get("action")) if pred.get("action") else None
        if a and a not in [lab["action"]] + lab["action_accept"] and (a == "retry_elsewhere_cordon" or (a == "do_not_retry")): danger += 1
    acc = {f: good[f] / tot[f] for f in FIELDS if tot[f]}
    return dict(n=len(labels), predicted=sum(c in preds for c in labels), accuracy=acc, counts={f: [good[f], tot[f]] for f in acc},
                macro_fields=sum(acc.values()) / len(acc) if acc else 0.0,
                core=sum(all(rows[c][f] for f in ("category", "culpable", "action")) for c in labels) / len(labels) if labels else 0.0,
                macro_category=sum(a / b for a, b in per_cat.values()) / len(per_cat) if per_cat else 0.0,
                misled=misled, harmful_actions=danger), rows, per_cat, conf

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("pred"); ap.add_argument("--split", default="all", choices=["dev", "own", "later", "all"])
    ap.add_argument("--lenient", action="store_true"); ap.add_argument("--verbose", action="store_true"); ap.add_argument("--json", action="store_true")
    a = ap.parse_args()
    labels, preds = load_labels(a.split), load_preds(a.pred)
    s, rows, per_cat, conf = summarise(labels, preds, a.lenient)
    s["mode"], s["split"] = ("lenient" if a.lenient else "strict"), a.split
    if a.json: print(json.dumps(s, indent=1)); return
    print(f"failures  split={a.split}  mode={s['mode']}  cases={s['n']}  predicted={s['predicted']}")
    for f, v in s["accuracy"].items(): print(f"  {f:12s} {v:6.1%}   ({s['counts'][f][0]}/{s['counts'][f][1]})")
    print(f"  macro average over fields            {s['macro_fields']:6.1%}")
    print(f"  category accuracy, macro by category {s['macro_category']:6.1%}")
    print(f"  category+culpable+action all right   {s['core']:6.1%}")
    print(f"  took a misleading line as evidence   {s['misled']}")
    print(f"  harmful actions (needless cordon or needless give-up) {s['harmful_actions']}")
    if a.verbose:
        for c, (g, t) in sorted(per_cat.items()): print(f"    {c:22s} {g}/{t}")
        for (w, p), n in conf.most_common(): print(f"    confused {w} -> {p}: {n}")
        for cid, r in rows.items():
            bad = [f for f in FIELDS if f in r and not r[f]]
            if bad: print(f"    {cid} wrong: {', '.join(bad)}{'  MISLED' if r['_misled'] else ''}{'' if cid in preds else '  (no prediction)'}")
    extra = set(preds) - set(load_labels("all"))
    if extra: print("warning: unknown ids:", ", ".join(sorted(map(str, extra))[:10]), file=sys.stderr)

if __name__ == "__main__": main()
