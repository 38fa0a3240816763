#!/usr/bin/env python3
"""Score log-progress predictions.  Pure standard library.

usage: score.py PRED.jsonl [--split dev|own|later|heldout|all] [--strict] [--verbose] [--json]

One JSON object per case and cut point:
 {"id": "PD01", "cut": "cut1", "step": 21, "total_steps": 1404, "epoch": 0.04, "total_epochs": 3,
  "fraction": 0.015, "steps_per_sec": 0.2924, "eta_s": 4730, "phase": "train", "loss": null}
A field left out or null means "not known" and is right only where the truth (or an accepted alternative)
is null.  By default accepted alternatives count; --strict uses the first answer only.

Tolerances: step and total_steps +-max(1, 0.5 % of the value, 0.2 % of the total); fraction +-0.02;
epoch and total_epochs exact if whole, else +-0.02; steps_per_sec +-15 %; eta_s +-25 % or 2 s; loss +-3 % or 0.005.
"""
import argparse, collections, glob, json, math, os, sys
HERE = os.path.dirname(os.path.abspath(__file__))
FIELDS = ["step", "total_steps", "epoch", "total_epochs", "fraction", "steps_per_sec", "eta_s", "phase", "loss"]
PHASE = {"training": "train", "validation": "eval", "valid": "eval", "val": "eval", "evaluation": "eval", "evaluating": "eval", "test": "eval",
         "testing": "eval", "checkpoint": "save", "checkpointing": "save", "saving": "save", "startup": "load", "loading": "load", "init": "load",
         "initialising": "load", "initializing": "load", "compiling": "compile", "finished": "done", "complete": "done", "completed": "done",
         "serve": "serving", "generation": "generate", "generating": "generate", "rollout": "generate", "infer": "inference"}

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
                if not isinstance(d, dict) or "id" not in d: sys.exit(f"line {n}: need an object with 'id' and 'cut'")
                k = (d["id"], d.get("cut", "end"))
                if k in out: print(f"warning: duplicate {k} (line {n}); the later one counts", file=sys.stderr)
                out[k] = d
    return out

def num(x):
    if isinstance(x, bool) or x is None: return None
    try: v = float(str(x).replace(",", "")) if isinstance(x, str) else float(x)
    except (ValueError, TypeError): return None
    return v if math.isfinite(v) else None

def same(f, p, t, total):
    if t is None: return p is None
    if p is None: return False
    if f == "phase":
        n = lambda x: PHASE.get(str(x).strip().lower(), str(x).strip().lower())
        return n(p) == n(t)
    if f == "loss" and isinstance(t, float) and math.isnan(t): return str(p).lower() == "nan"
    a, b = num(p), num(t)
    if a is None or b is None: return str(p).strip().lower() == str(t).strip().lower()
    d = abs(a - b)
    if f in ("step", "total_steps"): return d <= max(1.0, 0.005 * abs(b), 0.002 * (total or 0) if f == "step" else 0)
    if f == "fraction": return d <= 0.02 + 1e-9
    if f in ("epoch", "total_epochs"): return d < 1e-9 if float(b).is_integer() and float(a).is_integer() else d <= 0.02 + 1e-9
    if f == "steps_per_sec": return d <= 0.15 * abs(b)
    if f == "eta_s": return d <= max(2.0, 0.25 * abs(b))
    if f == "loss": return d <= max(0.005, 0.03 * abs(b))
    return False

def score_cut(cut, pred, strict):
    r = {}
    acc = {} if strict else (cut.get("accept") or {})
    tot = num(cut["truth"].get("total_steps"))
    for f in FIELDS:
        t = cut["truth"].get(f)
        alts = acc.get(f, [])
        r[f] = pred is not None and any(same(f, pred.get(f), x, tot) for x in [t] + list(alts))
    return r

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("pred"); ap.add_argument("--split", default="all", choices=["dev", "own", "later", "heldout", "all"])
    ap.add_argument("--strict", action="store_true"); ap.add_argument("--verbose", action="store_true"); ap.add_argument("--json", action="store_true")
    a = ap.parse_args()
    labels, preds = load_labels(a.split), load_preds(a.pred)
    good, tot = collections.Counter(), collections.Counter()
    gnn, tnn = collections.Counter(), collections.Counter()       # only where the truth is a value
    invented = collections.Counter(); missed = collections.Counter()
    fam = collections.defaultdict(lambda: [0, 0]); bycut = collections.defaultdict(lambda: [0, 0]); rows = []; have = 0
    for cid, lab in labels.items():
        for cut in lab["cuts"]:
            p = preds.get((cid, cut["name"])); have += p is not None
            r = score_cut(cut, p, a.strict)
            for f in FIELDS:
                t = cut["truth"].get(f)
                tot[f] += 1; good[f] += r[f]
                if t is not None: tnn[f] += 1; gnn[f] += r[f]
                if p is not None and not r[f]:
                    if t is None and p.get(f) is not None: invented[f] += 1
                    if t is not None and p.get(f) is None: missed[f] += 1
                fam[lab["framework"]][0] += r[f]; fam[lab["framework"]][1] += 1
                bycut[cut["name"]][0] += r[f]; bycut[cut["name"]][1] += 1
            rows.append((cid, cut["name"], [f for f in FIELDS if not r[f]], p is None))
    acc = {f: good[f] / tot[f] for f in FIELDS if tot[f]}
    accv = {f: gnn[f] / tnn[f] for f in FIELDS if tnn[f]}
    out = dict(split=a.split, mode="strict" if a.strict else "lenient", cases=len(labels), points=len(rows), predicted=have,
               accuracy=acc, accuracy_where_value=accv, macro=sum(acc.values()) / len(acc) if acc else 0, macro_where_value=sum(accv.values()) / len(accv) if accv else 0,
               perfect_points=sum(not b for _, _, b, _ in rows) / len(rows) if rows else 0, invented=dict(invented), missed=dict(missed),
               by_cut={k: g / t for k, (g, t) in bycut.items()})
    if a.json: print(json.dumps(out, indent=1)); return
    print(f"progress  split={a.split}  mode={out['mode']}  cases={out['cases']}  cut points={out['points']}  predicted={have}")
    print("  field          all points      truth is a value   invented  missed")
    for f in FIELDS:
        if tot[f]: print(f"  {f:14s} {acc[f]:6.1%} ({good[f]}/{tot[f]})   {accv.get(f, float('nan')):6.1%} ({gnn[f]}/{tnn[f]})   {invented[f]:6d}  {missed[f]:6d}")
    print(f"  macro average  {out['macro']:6.1%}           {out['macro_where_value']:6.1%}")
    print(f"  cut points with every field right {out['perfect_points']:6.1%};  by cut: " + ", ".join(f"{k} {v:.1%}" for k, v in out["by_cut"].items()))
    if a.verbose:
        for k, (g, t) in sorted(fam.items(), key=lambda x: x[1][0] / x[1][1]): print(f"    {k:28s} {g/t:6.1%}")
        for cid, c, bad, none in rows:
            if bad: print(f"    {cid} {c}: {'no prediction' if none else ', '.join(bad)}")
    extra = {k[0] for k in preds} - set(load_labels("all"))
    if extra: print("warning: unknown ids:", ", ".join(sorted(map(str, extra))[:10]), file=sys.stderr)

if __name__ == "__main__": main()
