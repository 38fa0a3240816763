#!/usr/bin/env python3
"""Score job-source metadata predictions.  Pure standard library.

usage: score.py PRED.jsonl [--split dev|own|later|all] [--strict] [--verbose] [--json]

One JSON object a case: {"id": "SD01", "fields": {"framework": "transformers", "nodes": 4, ...}}
(fields may also lie at the top level).  A field left out or null means "not determinable".
Text: case, punctuation and an owner prefix ("org/name") do not matter; lists: logging counts as right if
the sets are equal, or (default) if they overlap by at least half (Jaccard).  Numbers +-1 %, model_params
+-10 %.  By default accepted alternatives count; --strict uses the first answer and equal sets only.
"""
import argparse, collections, glob, json, math, os, re, sys
HERE = os.path.dirname(os.path.abspath(__file__))
FIELDS = ["framework", "task", "model_family", "model_name", "model_params", "dataset", "batch_size_per_device", "global_batch_size", "epochs",
          "max_steps", "total_steps", "optimizer", "precision", "strategy", "launcher", "gpus_per_node", "nodes", "grad_accum", "grad_checkpointing",
          "saves_checkpoints", "resume_supported", "logging"]
NUM = {"model_params", "batch_size_per_device", "global_batch_size", "epochs", "max_steps", "total_steps", "gpus_per_node", "nodes", "grad_accum"}
BOOL = {"grad_checkpointing", "saves_checkpoints", "resume_supported"}

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
                out[d["id"]] = d.get("fields") if isinstance(d.get("fields"), dict) else d
    return out

def num(x):
    if isinstance(x, bool) or x is None: return None
    if isinstance(x, (int, float)): return float(x) if math.isfinite(x) else None
    m = re.fullmatch(r"\s*([0-9][0-9,_]*\.?[0-9]*(?:e[+-]?\d+)?)\s*([kmbt]?)\s*", str(x).lower())
    if not m: return None
    return float(m.group(1).replace(",", "").replace("_", "")) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[m.group(2)]

def txt(x): return re.sub(r"[^a-z0-9]+", "", str(x).lower())
def boolean(x):
    if isinstance(x, bool): return x
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(str(x).strip().lower())

def lst(x):
    if x is None: return set()
    if isinstance(x, str): x = [y for y in re.split(r"[,;]", x) if y.strip()]
    return {txt(y) for y in x if y is not None}

def same(f, p, t, strict):
    if f == "logging":
        a, b = lst(p), lst(t)
        if a == b: return True
        return not strict and bool(a | b) and len(a & b) / len(a | b) >= 0.5
    if isinstance(p, (list, tuple)) and not isinstance(t, (list, tuple)): p = ",".join(map(str, p))
    if isinstance(t, (list, tuple)): t = ",".join(map(str, t))
    if t is None: return p is None or (isinstance(p, str) and txt(p) in ("", "null", "unknown", "na"))
    if p is None: return False
    if f in BOOL: return boolean(p) is not None and boolean(p) == t
    if f in NUM:
        a, b = num(p), num(t)
        if a is not None and b is not None: return abs(a - b) <= (0.10 if f == "model_params" else 0.01) * abs(b) + 1e-9
        return txt(p) == txt(t)
    a, b = txt(p), txt(t)
    if a == b: return True
    if f in ("model_name", "dataset"): return txt(str(p).rstrip("/").split("/")[-1]) == txt(str(t).rstrip("/").split("/")[-1])
    return False

def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("pred"); ap.add_argument("--split", default="all", choices=["dev", "own", "later", "all"])
    ap.add_argument("--strict", action="store_true"); ap.add_argument("--verbose", action="store_true"); ap.add_argument("--json", action="store_true")
    a = ap.parse_args()
    labels, preds = load_labels(a.split), load_preds(a.pred)
    good, tot, basis = collections.Counter(), collections.Counter(), collections.defaultdict(lambda: [0, 0])
    invented, missed, rows, per_case = collections.Counter(), collections.Counter(), [], {}
    for cid, lab in labels.items():
        p = preds.get(cid); g = 0
        for f in FIELDS:
            L = lab["fields"][f]
            alts = [] if a.strict else L["accept"]
            v = (p or {}).get(f)
            ok = p is not None and any(same(f, v, x, a.strict) for x in [L["value"]] + list(alts))
            tot[f] += 1; good[f] += ok; g += ok
            b = basis[L["basis"] or "not determinable"]; b[0] += ok; b[1] += 1
            if p is not None and not ok:
                if L["value"] is None and v is not None: invented[f] += 1
                if L["value"] is not None and v is None: missed[f] += 1
                rows.append((cid, f, L["value"], v))
        per_case[cid] = g / len(FIELDS)
    acc = {f: good[f] / tot[f] for f in FIELDS if tot[f]}
    out = dict(split=a.split, mode="strict" if a.strict else "lenient", cases=len(labels), predicted=sum(c in preds for c in labels), accuracy=acc,
               macro=sum(acc.values()) / len(acc) if acc else 0, by_basis={k: x / y for k, (x, y) in basis.items()}, invented=dict(invented), missed=dict(missed), per_case=per_case)
    if a.json: print(json.dumps(out, indent=1)); return
    print(f"sources  split={a.split}  mode={out['mode']}  cases={out['cases']}  predicted={out['predicted']}")
    for f in FIELDS:
        if tot[f]: print(f"  {f:22s} {acc[f]:6.1%} ({good[f]}/{tot[f]})   invented {invented[f]:3d}  missed {missed[f]:3d}")
    print(f"  macro average          {out['macro']:6.1%}")
    print("  by basis: " + ", ".join(f"{k} {x/y:.1%} ({x}/{y})" for k, (x, y) in sorted(basis.items())))
    if a.verbose:
        for cid, v in sorted(per_case.items(), key=lambda x: x[1]): print(f"    {cid} {v:6.1%}{'' if cid in preds else '  (no prediction)'}")
        for cid, f, t, v in rows: print(f"    {cid} {f}: want {t!r} got {v!r}")
    extra = set(preds) - set(load_labels("all"))
    if extra: print("warning: unknown ids:", ", ".join(sorted(map(str, extra))[:10]), file=sys.stderr)

if __name__ == "__main__": main()
