#!/usr/bin/env python3
"""Write the further set `own/`: re-created logs of programs that the development set lacks, with labels for three cuts each.

Message formats are those that the programs print; every name and number is ours. Deterministic: the same files on every run.
"""
import json, math, os, random, shutil
from datetime import datetime, timedelta

HERE = os.path.dirname(os.path.abspath(__file__))
FIELDS = ["step", "total_steps", "epoch", "total_epochs", "fraction", "steps_per_sec", "eta_s", "phase", "loss"]
CASES = []


class Log:
    """A log that is being written, and what would be true at each moment."""

    def __init__(self, slug, framework, command, gpus=1, nodes=1, difficulty="", **truth):
        self.slug, self.framework, self.command, self.gpus, self.nodes, self.difficulty = slug, framework, command, gpus, nodes, difficulty
        self.raw, self.truth, self.cuts = b"", dict.fromkeys(FIELDS), []
        self.random = random.Random(slug)
        self.at = datetime(2025, 3, 4, 9, 15, 0)
        self.t(**truth)
        CASES.append(self)

    def w(self, text, end="\n"):
        self.raw += text if isinstance(text, bytes) else (text + end).encode()

    def t(self, **truth):
        assert set(truth) <= set(FIELDS), truth
        self.truth.update(truth)

    def tick(self, seconds):
        self.at += timedelta(seconds=seconds)

    def jitter(self, value, share=0.02):
        return value * (1 + self.random.uniform(-share, share))

    def cut(self, accept=None, note=None, back=0, **now):
        truth = dict(self.truth, **now)
        step, total, rate = truth["step"], truth["total_steps"], truth["steps_per_sec"]
        if step is not None and total and truth["fraction"] is None:
            truth["fraction"] = round(step / total, 5)
        if step is not None and total and rate and truth["eta_s"] is None:
            truth["eta_s"] = round((total - step) / rate, 1)
        cut = {"name": ("cut1", "cut2", "end")[len(self.cuts)], "byte_offset": len(self.raw) - back, "truth": truth}
        if accept: cut["accept"] = accept
        if note: cut["note"] = note
        self.cuts.append(cut)


def bar(n, total, width=10, full="█", empty=" "):
    filled = int(width * n / total)
    return full * filled + empty * (width - filled)


def clock(seconds, hours=False):
    seconds = int(seconds)
    h, rest = divmod(seconds, 3600)
    return f"{h}:{rest // 60:02d}:{rest % 60:02d}" if h or hours else f"{rest // 60:02d}:{rest % 60:02d}"


def gromacs():
    g = Log("gromacs_blocks", "gromacs", "gmx mdrun -deffnm npt -nb gpu", phase="train", difficulty="hard: step and time stand under their headings; nsteps in the parameter dump; wall clock from the dates only",
            total_steps=500000, steps_per_sec=250.0)
    g.w("                      :-) GROMACS - gmx mdrun, 2023.3 (-:\n\nInput Parameters:\n   integrator                     = md\n   tinit                          = 0\n   dt                             = 0.002\n   nsteps                         = 500000\n   nstlog                         = 5000\n   ref-t                          = 300\n")
    g.w(f"Started mdrun on rank 0 {g.at:%a %b %d %H:%M:%S %Y}\n")
    for k in range(0, 24):
        step = k * 5000
        g.w(f"           Step           Time\n{step:15d}{step * 0.002:15.5f}\n")
        g.w(f"   Energies (kJ/mol)\n           Bond          Angle    Proper Dih.      Potential    Temperature\n    {2.1e3 + k:.5e}    {5.4e3 - k:.5e}    {6.6e3:.5e}   {-4.12e5 - 30 * k:.5e}    {g.jitter(300, .01):.5e}\n")
        if k and k % 2 == 0:
            g.w(f"step {step}, remaining wall clock time: {int((500000 - step) / 250)} s          ")
        g.t(step=step)
        if k in (8, 16): g.cut(accept={"phase": ["inference"]})
    g.cut()


def lammps():
    g = Log("lammps_thermo_cpu", "lammps", "lmp -in in.melt -log none", phase="train", difficulty="hard: a table under a header line; 'run' echoed; elapsed seconds in the CPU column", total_steps=40000)
    g.w("LAMMPS (2 Aug 2023 - Update 2)\nLattice spacing in x,y,z = 1.6795962 1.6795962 1.6795962\nCreated 32000 atoms\nthermo 500\nrun 40000\nNeighbor list info ...\n  update: every = 20 steps, delay = 0 steps, check = no\n  master list distance cutoff = 2.8\nPer MPI rank memory allocation (min/avg/max) = 12.3 | 12.3 | 12.3 Mbytes")
    g.w("   Step          CPU            Temp          E_pair         TotEng         Press     ")
    for k in range(0, 56):
        g.w(f"{k * 500:10d}   {g.jitter(k * 4.0, .002):<14.6f} {g.jitter(1.44, .01):<14.7f} {-6.77 + k * .001:<14.7f} {-4.61:<14.7f} {g.jitter(-5.0, .01):<12.6f}")
        g.t(step=k * 500, steps_per_sec=125.0 if k else None)
        if k in (14, 33): g.cut()
    g.cut()


def namd():
    g = Log("namd_timing", "namd", "namd3 +p8 eq.conf", phase="train", difficulty="hard: ENERGY rows and TIMING rows; seconds a step; 'hours remaining'", total_steps=250000, steps_per_sec=1 / 0.0125)
    g.w("Charm++> Running in Multicore mode: 8 threads\nInfo: NAMD 3.0 for Linux-x86_64-multicore-CUDA\nInfo: TIMESTEP               2\nInfo: NUMBER OF STEPS        250000\nInfo: STEPS PER CYCLE        20\nETITLE:      TS           BOND          ANGLE          DIHED          IMPRP               ELECT            VDW       TOTAL         TEMP")
    for k in range(0, 45):
        step = k * 1000
        if k:
            g.w(f"TIMING: {step}  CPU: {step * .01248:.4f}, {g.jitter(.01248):.6f}/step  Wall: {step * .0125:.4f}, {g.jitter(.0125):.6f}/step, {80.0:.3f} ns/days, {(250000 - step) * .0125 / 3600:.5f} hours remaining, 0.000000 MB of memory in use.")
        g.w(f"ENERGY: {step:7d} {1123.4 + k:14.4f} {3011.2:14.4f} {7321.7:14.4f} {92.1:14.4f} {-231244.1 - k:19.4f} {18230.3:14.4f} {-190123.4:12.4f} {g.jitter(298.0):12.4f}")
        if k: g.t(step=step)
        if k in (10, 27): g.cut()
    g.cut()


def xgboost():
    g = Log("xgboost_rounds", "xgboost", "python boost.py --num_boost_round 600 --early_stopping_rounds 40", phase="train", difficulty="medium: only the round in brackets; no time at all, so no rate", total_steps=600)
    g.w("[09:15:00] INFO: loaded 1200000 rows, 214 columns")
    for k in range(0, 90):
        g.w(f"[{k}]\ttrain-rmse:{4.1 * math.exp(-k / 40) + .3:.5f}\tvalid-rmse:{4.2 * math.exp(-k / 42) + .5:.5f}")
        g.t(step=k)
        if k in (20, 61): g.cut(accept={"loss": [round(4.1 * math.exp(-k / 40) + .3, 5)]})
    g.cut(accept={"loss": [round(4.1 * math.exp(-89 / 40) + .3, 5)]})


def lightgbm():
    g = Log("lightgbm_iterations", "lightgbm", "lightgbm config=train.conf num_iterations=800", phase="train", difficulty="medium: timing lines name the iteration, metric lines repeat it for the validation set", total_steps=800, steps_per_sec=8.0)
    g.w("[LightGBM] [Info] Finished loading parameters\n[LightGBM] [Info] Number of positive: 312011, number of negative: 688123\n[LightGBM] [Info] Start training from score -0.790881")
    for k in range(1, 46):
        g.w(f"[LightGBM] [Info] Iteration:{k * 4}, training binary_logloss : {.65 * math.exp(-k / 60):.6f}\n[LightGBM] [Info] Iteration:{k * 4}, valid_1 binary_logloss : {.66 * math.exp(-k / 70):.6f}\n[LightGBM] [Info] {g.jitter(k * .5, .004):.6f} seconds elapsed, finished iteration {k * 4}")
        g.t(step=k * 4)
        near = {"loss": [round(.65 * math.exp(-k / 60), 6)], "phase": ["eval"]}
        if k in (12, 30): g.cut(accept=near)
    g.cut(accept=near)


def catboost():
    g = Log("catboost_remaining", "catboost", "python cat.py", phase="train", difficulty="medium: 'k:' at the start, total time so far in mixed units, remaining", steps_per_sec=20.0, total_steps=3000)
    g.w("Learning rate set to 0.0301\nCatBoostClassifier(iterations=3000, depth=8)")
    for k in range(0, 80):
        n = k * 25
        spent, left = (n + 1) / 20, (3000 - n - 1) / 20
        fmt = lambda s: f"{s * 1000:.0f}ms" if s < 1 else (f"{s:.1f}s" if s < 60 else f"{int(s // 60)}m {int(s % 60)}s")
        loss = .69 * math.exp(-n / 900)
        g.w(f"{n}:\tlearn: {loss:.7f}\ttest: {loss * 1.05:.7f}\tbest: {loss * 1.05:.7f} ({n})\ttotal: {fmt(spent)}\tremaining: {fmt(left)}")
        g.t(step=n)
        near = {"loss": [round(loss, 7)]}
        if k in (15, 50): g.cut(accept=near)
    g.cut(accept=near)


def tianshou():
    g = Log("tianshou_epoch_bar", "tianshou", "python ppo.py --epoch 20 --step-per-epoch 10000", phase="train", difficulty="hard: environment steps; the bar is an epoch, env_step in its tail counts on", total_steps=200000, total_epochs=20, steps_per_sec=500.0)
    for epoch in range(1, 5):
        for k in range(0, 11):
            if k == 0 and epoch > 1: continue
            n = k * 1000
            env = (epoch - 1) * 10000 + n
            loss = 1.2 / (1 + env / 9000)
            g.w(f"\rEpoch #{epoch}:  {n / 100:3.0f}%|{bar(n, 10000)}| {n}/10000 [{clock(n / 500)}<{clock((10000 - n) / 500)}, {g.jitter(500):.2f}it/s, env_step={env}, len=200, loss={loss:.3f}, n/ep=2, n/st=1000, rew=-{300 - env / 200:.2f}]", end="")
            if n: g.t(step=env, epoch=epoch, loss=round(loss, 3))
            if (epoch, k) in ((1, 6), (3, 4)): g.cut()
        g.w(f"\nEpoch #{epoch}: test_reward: -210.123456 ± 12.345678, best_reward: -200.12 ± 9.1 in #{epoch}")
    g.cut(accept={"phase": ["eval"]})


def cleanrl():
    g = Log("cleanrl_sps", "cleanrl", "python ppo_continuous.py --total-timesteps 1000000", phase="train", difficulty="medium: environment steps; SPS lines carry no name but SPS; returns look like numbers to follow", total_steps=1000000, steps_per_sec=2100.0)
    step = 0
    for k in range(1, 60):
        for j in range(2):
            step += 1024
            g.w(f"global_step={step}, episodic_return={g.jitter(100 + k, .4):.4f}")
        g.w(f"SPS: {int(g.jitter(2100, .01))}")
        g.t(step=step)
        if k in (12, 38): g.cut()
    g.cut()


def spinningup():
    g = Log("spinup_table", "spinningup", "python -m spinup.run ddpg --env Hopper-v4 --epochs 100 --steps_per_epoch 4000", phase="train", difficulty="hard: a box of names and values without separators; TotalEnvInteracts and Time", total_steps=400000, total_epochs=100, steps_per_sec=400.0)
    for k in range(1, 13):
        loss = .9 / k
        g.w("-" * 39)
        for name, value in (("Epoch", k), ("AverageEpRet", f"{100.0 + k * 12:.3g}"), ("StdEpRet", "33.1"), ("EpLen", 98), ("TotalEnvInteracts", f"{k * 4000:d}"), ("LossPi", "-21.2"), ("LossQ", f"{loss:.4f}"), ("Time", f"{k * 10.0:.3g}")):
            g.w(f"| {name:>16} | {value:>16} |")
        g.w("-" * 39)
        g.t(step=k * 4000, epoch=k)
        near = {"loss": [round(loss, 4), -21.2], "steps_per_sec": [None] if k < 2 else []}
        if k in (4, 9): g.cut(accept=near)
    g.cut(accept=near)


def rl_games():
    g = Log("rl_games_fps", "rl_games", "python train.py task=Ant headless=True max_iterations=500", phase="train", difficulty="hard: frames and epochs on one line with three fps; an epoch is the unit that has a total", total_epochs=500)
    g.w("self.seed = 42\nStarted to train")
    for k in range(1, 70):
        g.w(f"fps step: {g.jitter(91000):.0f} fps step and policy inference: {g.jitter(70000):.0f} fps total: {g.jitter(32768, .01):.0f} epoch: {k}/500 frames: {(k - 1) * 65536}")
        g.t(epoch=k, fraction=k / 500, eta_s=(500 - k) * 2.0)
        near = {"step": [k, (k - 1) * 65536], "total_steps": [500, 500 * 65536], "steps_per_sec": [0.5, 32768], "eta_s": [None]}
        if k in (20, 45): g.cut(accept=near)
    g.cut(accept=near)


def rsl_rl():
    g = Log("rsl_rl_panels", "rsl_rl", "python train.py --task Go2 --max_iterations 1500", phase="train", difficulty="medium: ANSI bold, a panel an iteration, ETA line in seconds", total_steps=1500, steps_per_sec=1 / 1.05)
    for k in range(1, 12):
        n = 100 + k
        loss = .02 / k
        g.w("#" * 80 + f"\n                      \x1b[1m Learning iteration {n}/1500 \x1b[0m                       \n\n                       Computation: {g.jitter(94000):.0f} steps/s (collection: 0.812s, learning 0.238s)\n               Value function loss: {loss:.4f}\n                    Surrogate loss: -0.0041\n             Mean action noise std: 0.92\n                       Mean reward: {2 + k * .1:.2f}\n               Mean episode length: 621.2")
        g.w("-" * 80 + f"\n                   Total timesteps: {n * 98304}\n                    Iteration time: {g.jitter(1.05, .01):.2f}s\n                        Total time: {n * 1.05:.2f}s\n                               ETA: {(1500 - n) * 1.05:.1f}s\n")
        g.t(step=n)
        near = {"loss": [round(loss, 4), -.0041]}
        if k in (4, 8): g.cut(accept=near)
    g.cut(accept=near)


def maxtext():
    g = Log("maxtext_seconds", "maxtext", "python MaxText/train.py base.yml steps=2000", gpus=8, phase="compile", difficulty="medium: seconds per step; the first holds the compilation; total in a config line")
    g.w("Config param learning_rate: 3e-05\nConfig param steps: 2000\nConfig param per_device_batch_size: 12\nNum_devices: 8, shape (1, 1, 8, 1)\nNo existing checkpoints found, not restoring checkpoint.")
    g.t(total_steps=2000)
    for k in range(0, 70):
        s = 41.7 if k == 0 else g.jitter(2.32)
        loss = 10.8 * math.exp(-k / 80)
        g.w(f"completed step: {k}, seconds: {s:.3f}, TFLOP/s/device: {240 / s:.3f}, Tokens/s/device: {8192 / s:.3f}, total_weights: 65536, loss: {loss:.3f}")
        g.t(phase="train", step=k, loss=round(loss, 3), steps_per_sec=1 / 2.32)
        if k in (9, 40): g.cut()
    g.cut()


def clu():
    g = Log("clu_logging_writer", "jax_clu", "python main.py --workdir=/o/r1 --config=configs/base.py", gpus=8, phase="train", difficulty="medium: glog stamps without a year; step in brackets; work-unit notes with percentage and ETA; eval collection between", total_steps=20000, steps_per_sec=4.0)
    for k in range(1, 56):
        n = k * 100
        g.tick(25)
        loss = 6.9 * math.exp(-n / 4000)
        stamp = f"{g.at:%m%d %H:%M:%S}.{k * 7919 % 1000000:06d}"
        g.w(f"I{stamp} 139871 logging_writer.py:48] [{n}] learning_rate=0.0003{k % 10}, loss={loss:.5f}, steps_per_sec={g.jitter(4.0):.4f}")
        if k % 3 == 0: g.w(f"I{stamp} 139871 local.py:45] Setting work unit notes: 4.0 steps/s, {n / 200:.1f}% ({n}/20000), ETA: {int((20000 - n) / 240)}m")
        if k % 20 == 0: g.w(f"I{stamp} 139871 logging_writer.py:48] [{n}] eval_accuracy=0.41{k % 10}, eval_loss={loss * 1.1:.4f}")
        g.t(step=n, loss=round(loss, 5))
        if k in (14, 40): g.cut(accept={"phase": ["eval"]} if k == 40 else None)
    g.cut()


def composer():
    g = Log("composer_batches", "composer", "composer train.py pretrain.yaml", gpus=8, phase="train", difficulty="hard: a block of lines a batch, names with slashes; batches_per_sec below", total_steps=4800)
    g.w("Config:\nmax_duration: 4800ba\nglobal_batch_size: 512\n******************************\nStarting training...")
    for k in range(1, 16):
        n = k * 10
        loss = 9.5 * math.exp(-k / 25)
        g.w(f"[batch={n}/4800]:\n\t Train time/batch: {n - 1}\n\t Train time/sample: {(n - 1) * 512}\n\t Train time/batch_in_epoch: {n - 1}\n\t Train loss/train/total: {loss:.4f}\n\t Train metrics/train/LanguageCrossEntropy: {loss:.4f}")
        if k > 1: g.w(f"\t Train throughput/batches_per_sec: {g.jitter(.85):.4f}\n\t Train throughput/samples_per_sec: {g.jitter(435):.4f}")
        g.t(step=n, loss=round(loss, 4), steps_per_sec=.85 if k > 1 else None)
        if k in (5, 11): g.cut()
    g.cut()


def terse_json():
    g = Log("terse_json_ranks", "home_grown", "python -m trainer.main cfg/exp7.yaml", gpus=4, phase="train", difficulty="hard: JSON with terse keys, four ranks interleaved and out of step, epoch seconds", total_steps=5000, steps_per_sec=2.5)
    base = 1741079700.0
    g.w('{"ts": 1741079690.11, "rank": 0, "ev": "boot", "world": 4, "cfg": "cfg/exp7.yaml"}')
    for k in range(1, 36):
        n = k * 10
        order = [0, 1, 2, 3]
        g.random.shuffle(order)
        for rank in order:
            g.w(json.dumps({"ts": round(base + n / 2.5 + rank * .013, 2), "rank": rank, "ev": "tick", "i": n, "of": 5000, "l": round(3.2 * math.exp(-n / 300), 4), "gn": round(g.jitter(.8, .2), 3)}))
        g.t(step=n, loss=round(3.2 * math.exp(-n / 300), 4))
        near = {"loss": [None]}
        if k in (9, 22): g.cut(accept=near)
    g.cut(accept=near)


def logfmt():
    g = Log("logfmt_dt", "home_grown", "./bin/fit --conf run.toml", phase="train", difficulty="medium: key=value, n and n_max, dt is seconds per update; a checkpoint pause among them", total_steps=9000, steps_per_sec=1 / .52)
    g.w('ts=2025-03-04T09:15:00Z lvl=info msg="resuming" from=ckpt/000600.bin')
    for k in range(1, 80):
        n = 600 + k * 5
        g.tick(2.6 if k % 25 else 47)
        obj = 1.9 * math.exp(-k / 70)
        g.w(f'ts={g.at:%Y-%m-%dT%H:%M:%SZ} lvl=info msg=update n={n} n_max=9000 obj={obj:.4f} lr=2.0e-04 dt={g.jitter(.52):.3f}')
        if k % 25 == 24: g.w(f'ts={g.at:%Y-%m-%dT%H:%M:%SZ} lvl=info msg="state written" path=ckpt/{n:06d}.bin bytes=812331221')
        g.t(step=n)
        near = {"loss": [round(obj, 4)]}
        if k in (26, 55): g.cut(accept=near)
    g.cut(accept=near)


def chinese():
    g = Log("chinese_rounds", "home_grown", "python 训练.py --轮数 20", phase="train", difficulty="hard: Chinese words only; round and batch within the round; seconds a batch", total_steps=30000, total_epochs=20, steps_per_sec=1 / .32)
    g.w("加载数据集完成，共 96000 个样本\n开始训练")
    for k in range(1, 66):
        n = k * 50
        epoch, inner = 1 + (n - 1) // 1500, (n - 1) % 1500 + 1
        loss = 2.4 * math.exp(-n / 2500)
        g.w(f"第 {epoch}/20 轮 第 {inner}/1500 批 损失 {loss:.4f} 学习率 0.0001 用时 {g.jitter(.32):.3f}秒/批")
        if inner == 1500: g.w(f"验证 准确率 0.71 损失 {loss * 1.2:.4f}")
        g.t(step=n, epoch=epoch, loss=round(loss, 4))
        if k in (13, 48): g.cut()
    g.cut(back=0)


def german():
    g = Log("german_schritt", "home_grown", "python lernen.py", phase="train", difficulty="medium: German words, steps per second by name", total_steps=50000, steps_per_sec=2.3)
    g.w("Lade Modell aus /daten/modell.bin …\nBeginne Training mit 50000 Schritten")
    for k in range(1, 70):
        n = k * 25
        loss = 1.7 * math.exp(-n / 1500)
        g.tick(25 / 2.3)
        g.w(f"{g.at:%d.%m.%Y %H:%M:%S} Schritt {n} von 50000 | Verlust {loss:.4f} | {g.jitter(2.3):.2f} Schritte/s")
        if k % 30 == 0: g.w(f"{g.at:%d.%m.%Y %H:%M:%S} Prüfung: Verlust {loss * 1.3:.4f}")
        g.t(step=n, loss=round(loss, 4))
        if k in (17, 44): g.cut()
    g.cut()


def percent_only():
    g = Log("percent_elapsed", "home_grown", "./simulate --cells 4000000", phase="train", difficulty="medium: a percentage and elapsed time are all there is")
    g.w("mesh read: 4000000 cells\nsolver: multigrid, 8 levels")
    for k in range(1, 60):
        share = k * .6
        g.w(f"Progress: {share:5.1f}% (elapsed {clock(k * 12, True)})")
        if k % 10 == 0: g.w(f"  residual {10 ** (-2 - k / 30):.3e}, memory 41.2% of 96 GiB")
        g.t(fraction=round(share / 100, 4), eta_s=round((100 - share) / .6 * 12, 1))
        near = {"phase": ["inference"], "loss": [None, ]}
        if k in (16, 41): g.cut(accept=near)
    g.cut(accept=near)


def caffe():
    g = Log("caffe_solver", "caffe", "caffe train --solver=solver.prototxt", gpus=2, phase="train", difficulty="medium: glog lines; iterations/s and seconds per 100 printed; max_iter in the printed solver; test net outputs between", total_steps=45000, steps_per_sec=9.5)
    g.w("I0304 09:15:00.112211  4021 solver.cpp:48] Initializing solver from parameters: \ntest_iter: 100\ntest_interval: 1000\nbase_lr: 0.01\ndisplay: 100\nmax_iter: 45000\nlr_policy: \"step\"\nI0304 09:15:02.100000  4021 solver.cpp:60] Solver scaffolding done.")
    for k in range(1, 36):
        n = k * 100
        g.tick(100 / 9.5)
        loss = 2.3 * math.exp(-n / 3000)
        s = f"I{g.at:%m%d %H:%M:%S}.{k * 331 % 1000000:06d}  4021 solver.cpp"
        if n % 1000 == 0: g.w(f"{s}:341] Iteration {n}, Testing net (#0)\n{s}:409]     Test net output #0: accuracy = 0.6121\n{s}:409]     Test net output #1: loss = {loss * 1.1:.5f} (* 1 = {loss * 1.1:.5f} loss)")
        g.w(f"{s}:239] Iteration {n} ({g.jitter(9.5):.4f} iter/s, {100 / 9.5:.4f}s/100 iters), loss = {loss:.5f}\n{s}:258]     Train net output #0: loss = {loss:.5f} (* 1 = {loss:.5f} loss)\nI{g.at:%m%d %H:%M:%S}.{k * 337 % 1000000:06d}  4021 sgd_solver.cpp:112] Iteration {n}, lr = 0.01")
        g.t(step=n, loss=round(loss, 5))
        if k in (9, 24): g.cut()
    g.cut()


def darknet():
    g = Log("darknet_avg", "darknet", "./darknet detector train voc.data yolov4.cfg -dont_show", phase="train", difficulty="hard: iteration at the line's start, seconds a batch, 'hours left'; max_batches in the cfg print", total_steps=20000, steps_per_sec=1 / 3.2)
    g.w(" layer   filters  size/strd(dil)      input                output\n   0 conv     32       3 x 3/ 1    608 x 608 x   3 ->  608 x 608 x  32 0.639 BF\n   1 conv     64       3 x 3/ 2    608 x 608 x  32 ->  304 x 304 x  64 3.407 BF\n Learning Rate: 0.001, Momentum: 0.949, Decay: 0.0005\n max_batches = 20000\n Resizing, random_coef = 1.40")
    for k in range(1, 40):
        n = 1200 + k
        avg = 3.1 * math.exp(-k / 60)
        g.w(f"v3 (iou loss, Normalizer: (iou: 0.07, obj: 1.00, cls: 1.00) Region 139 Avg (IOU: 0.61{k % 10}), count: {20 + k % 5}, class_loss = 1.52, iou_loss = 10.1, total_loss = 11.6")
        g.w(f" {n}: {g.jitter(avg, .1):.6f}, {avg:.6f} avg loss, 0.001000 rate, {g.jitter(3.2):.6f} seconds, {n * 64} images, {(20000 - n) * 3.2 / 3600:.6f} hours left")
        g.t(step=n, loss=round(avg, 6))
        near = {"loss": [11.6, round(avg * 1.1, 3), round(avg * .95, 3), round(avg * 1.05, 3), round(avg * .9, 3)]}
        if k in (11, 28): g.cut(accept=near)
    g.cut(accept=near)


def icefall():
    g = Log("icefall_batches", "icefall", "python zipformer/train.py --num-epochs 30 --world-size 4", gpus=4, phase="train", difficulty="hard: batch in an epoch of unknown length; loss in brackets with sums behind; epoch seconds by stamps", total_epochs=30)
    for k in range(1, 62):
        g.tick(20)
        epoch = 3
        n = 2000 + k * 50
        loss = .31 * math.exp(-k / 200)
        g.w(f"{g.at:%Y-%m-%d %H:%M:%S},{k * 13 % 1000:03d} INFO [train.py:1031] (0/4) Epoch {epoch}, batch {n}, loss[loss={g.jitter(loss, .08):.4f}, simple_loss=0.3012, pruned_loss=0.0912, over 5120.00 frames. ], tot_loss[loss={loss:.4f}, simple_loss=0.2911, over 1131287.12 frames. ], batch size: 21, lr: 3.11e-02, grad_scale: 16.0")
        if k % 20 == 0: g.w(f"{g.at:%Y-%m-%d %H:%M:%S},{k * 17 % 1000:03d} INFO [train.py:1063] (0/4) Epoch {epoch}, validation: loss=0.2412, simple_loss=0.2811, over 944034.00 frames.")
        g.t(epoch=epoch, steps_per_sec=2.5 if k > 1 else None, loss=round(loss, 4), fraction=None)
        near = {"step": [n], "loss": [round(loss * x, 4) for x in (.925, .95, .975, 1.025, 1.05, 1.075)], "fraction": [round(2 / 30, 4), .1], "phase": ["train"]}
        if k in (15, 40): g.cut(accept=near, phase="eval" if k == 40 else "train")
    g.cut(accept=near)


def opennmt():
    g = Log("opennmt_step_of", "opennmt", "onmt_train -config t.yaml", gpus=2, phase="train", difficulty="easy: Step n/total; seconds since the start at the line's end; tokens/s", total_steps=100000, steps_per_sec=5.0)
    g.w("[2025-03-04 09:15:00,001 INFO] Starting training on GPU: [0, 1]\n[2025-03-04 09:15:00,002 INFO] Start training loop and validate every 1000 steps...")
    for k in range(1, 60):
        n = k * 50
        g.tick(10)
        xent = 8 * math.exp(-n / 6000)
        g.w(f"[{g.at:%Y-%m-%d %H:%M:%S},{k * 11 % 1000:03d} INFO] Step {n}/100000; acc: {20 + k * .2:.1f}; ppl: {math.exp(xent):.2f}; xent: {xent:.2f}; lr: 0.00{k:03d}; sents: {n * 62}; bsz: 3201/3310/62; 64020/66201 tok/s; {k * 10:6.0f} sec;")
        if n % 1000 == 0:
            g.tick(33)
            g.w(f"[{g.at:%Y-%m-%d %H:%M:%S},001 INFO] valid stats calculation\n                           took: 32.1 s.\n[{g.at:%Y-%m-%d %H:%M:%S},002 INFO] Train perplexity: 120.1\n[{g.at:%Y-%m-%d %H:%M:%S},002 INFO] Validation perplexity: 99.2\n[{g.at:%Y-%m-%d %H:%M:%S},002 INFO] Validation accuracy: 31.2")
        g.t(step=n)
        near = {"loss": [round(xent, 2)]}
        if k in (13, 41): g.cut(accept=near)
    g.cut(accept=near)


def marian():
    g = Log("marian_updates", "marian", "marian -c config.yml --after-batches 60000", gpus=4, phase="train", difficulty="hard: 'Up.' and 'Ep.'; time is that of the display interval; total only in the command", total_steps=60000, steps_per_sec=100 / 24)
    g.w("[2025-03-04 09:15:00] [config] disp-freq: 100\n[2025-03-04 09:15:00] [config] max-length: 100\n[2025-03-04 09:15:00] Training started")
    for k in range(1, 62):
        n = k * 100
        g.tick(24)
        cost = 9.1 * math.exp(-n / 7000)
        epoch = 1 + n // 2500
        g.w(f"[{g.at:%Y-%m-%d %H:%M:%S}] Ep. {epoch} : Up. {n} : Sen. {n * 1024 % 2600000:,} : Cost {cost:.8f} * {112233 + k:,} after {n * 28123:,} : Time {g.jitter(24):.2f}s : {g.jitter(117000):.2f} words/s : gNorm 1.2{k % 10}")
        g.t(step=n, epoch=epoch)
        near = {"loss": [round(cost, 6)]}
        if k in (14, 43): g.cut(accept=near)
    g.cut(accept=near)


def flair():
    g = Log("flair_iters", "flair", "python ner.py", phase="train", difficulty="medium: iter within the epoch; 'time (sec)' runs within the epoch; max_epochs in the banner", total_epochs=10, total_steps=5860, steps_per_sec=4.0)
    g.w("2025-03-04 09:15:00,101 Parameters:\n2025-03-04 09:15:00,101  - learning_rate: \"0.100000\"\n2025-03-04 09:15:00,101  - mini_batch_size: \"32\"\n2025-03-04 09:15:00,101  - max_epochs: \"10\"\n2025-03-04 09:15:00,101 ----------------------------------------------------------------------------------------------------")
    count = 0
    for epoch in range(1, 6):
        for k in range(1, 11):
            if epoch == 5 and k > 5: break
            n = k * 58
            g.tick(14.5)
            loss = 1.1 * math.exp(-((epoch - 1) * 586 + n) / 2000)
            g.w(f"{g.at:%Y-%m-%d %H:%M:%S},{k * 91 % 1000:03d} epoch {epoch} - iter {n}/586 - loss {loss:.8f} - time (sec): {n / 4.0:.2f} - samples/sec: {g.jitter(128):.2f} - lr: 0.100000")
            g.t(step=(epoch - 1) * 586 + n, epoch=epoch, loss=round(loss, 8))
            count += 1
            if count in (7, 27): g.cut()
        if epoch < 5:
            g.tick(9)
            g.w(f"{g.at:%Y-%m-%d %H:%M:%S},001 ----------------------------------------------------------------------------------------------------\n{g.at:%Y-%m-%d %H:%M:%S},002 EPOCH {epoch} done: loss {loss:.4f} - lr 0.1000000\n{g.at:%Y-%m-%d %H:%M:%S},003 DEV : loss {loss * 1.2:.6f} - f1-score (micro avg)  0.8612")
    g.cut()


def spacy():
    g = Log("spacy_table", "spacy", "python -m spacy train config.cfg --training.max_steps 20000", phase="train", difficulty="hard: a table under a header, E and #; no time", total_steps=20000)
    g.w("ℹ Saving to output directory: out\nℹ Using GPU: 0\n\n=========================== Initializing pipeline ===========================\n✔ Initialized pipeline\n\n============================= Training pipeline =============================\nℹ Pipeline: ['tok2vec', 'ner']\nℹ Initial learn rate: 0.001\nE    #       LOSS TOK2VEC  LOSS NER  ENTS_F  ENTS_P  ENTS_R  SCORE \n---  ------  ------------  --------  ------  ------  ------  ------")
    for k in range(0, 45):
        n = k * 200
        g.w(f"{k // 6:3d}  {n:6d}  {1200 * math.exp(-k / 20):12.2f}  {9100 * math.exp(-k / 15):8.2f}  {60 + k * .4:6.2f}  {61 + k * .4:6.2f}  {59 + k * .4:6.2f}    {(60 + k * .4) / 100:.2f}")
        g.t(step=n, epoch=k // 6)
        near = {"loss": [round(1200 * math.exp(-k / 20), 2), round(9100 * math.exp(-k / 15), 2)], "phase": ["eval"]}
        if k in (10, 29): g.cut(accept=near)
    g.cut(accept=near)


def fastai():
    g = Log("fastai_table", "fastai", "python fit.py  # learn.fit_one_cycle(40, 1e-3)", phase="train", difficulty="hard: epochs only, a header and rows with m:ss; 0-based; total only in the comment of the command", total_epochs=40)
    g.w("epoch     train_loss  valid_loss  accuracy  time    ")
    for k in range(0, 33):
        loss = .9 * math.exp(-k / 15)
        g.w(f"{k:<9d} {loss:<11.6f} {loss * 1.1:<11.6f} {.5 + k * .01:<9.6f} {['01:02', '01:01', '01:03'][k % 3]}")
        g.t(epoch=k, fraction=(k + 1) / 40, loss=round(loss, 6), eta_s=(39 - k) * 62.0)
        near = {"eta_s": [None], "fraction": [None, k / 40], "total_epochs": [None]}
        if k in (8, 21): g.cut(accept=near)
    g.cut(accept=near)


def vllm():
    g = Log("vllm_serving", "vllm", "vllm serve m7b --tensor-parallel-size 2", gpus=2, phase="load", difficulty="medium: rates and percentages everywhere, nothing of it is progress")
    g.w("INFO 03-04 09:15:00 api_server.py:712] vLLM API server version 0.6.3\nINFO 03-04 09:15:11 model_runner.py:1060] Starting to load model m7b...")
    for k in range(0, 5): g.w(f"\rLoading safetensors checkpoint shards: {k * 25:3d}% Completed | {k}/4 [00:0{k}<00:0{4 - k},  1.01it/s]", end="")
    g.w("")
    g.cut(accept={"phase": ["serving"]})
    g.w("INFO 03-04 09:15:40 model_runner.py:1071] Loading model weights took 13.12 GB\nINFO:     Started server process [4711]\nINFO:     Application startup complete.\nINFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)")
    g.t(phase="serving")
    for k in range(0, 50):
        g.tick(10)
        if k % 3 == 0: g.w(f'INFO:     10.0.0.{k}:4{k:04d} - "POST /v1/chat/completions HTTP/1.1" 200 OK')
        g.w(f"INFO {g.at:%m-%d %H:%M:%S} metrics.py:345] Avg prompt throughput: {g.jitter(310, .5):.1f} tokens/s, Avg generation throughput: {g.jitter(910, .3):.1f} tokens/s, Running: {10 + k % 7} reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: {k * .6:.1f}%, CPU KV cache usage: 0.0%.")
        if k == 24: g.cut()
    g.cut()


def access_log():
    g = Log("triton_access", "triton", "tritonserver --model-repository=/m", phase="serving", difficulty="medium: request ids and counters that grow; nothing of it is training")
    g.w("I0304 09:15:00.101010 1 server.cc:676] \n+----------+---------+--------+\n| Model    | Version | Status |\n+----------+---------+--------+\n| reranker | 3       | READY  |\n+----------+---------+--------+\nI0304 09:15:02.000001 1 grpc_server.cc:2513] Started GRPCInferenceService at 0.0.0.0:8001\nI0304 09:15:02.000002 1 http_server.cc:4497] Started HTTPService at 0.0.0.0:8000")
    for k in range(0, 60):
        g.tick(1.7)
        g.w(f"I{g.at:%m%d %H:%M:%S}.{k * 7717 % 1000000:06d} 1 infer_handler.cc:{702 + k % 4}] Process for ModelInferHandler, rpc_ok=1, {k} step START\n" if k % 4 == 0 else f"I{g.at:%m%d %H:%M:%S}.{k * 7717 % 1000000:06d} 1 http_server.cc:3452] HTTP request: 2 /v2/models/reranker/versions/3/infer, latency {g.jitter(12, .4):.2f} ms", end="" if k % 4 == 0 else "\n")
        if k in (20, 41): g.cut()
    g.cut()


def transcribe():
    g = Log("batch_transcribe", "home_grown", "python transcribe.py --in list.txt --out o/", phase="inference", difficulty="medium: [n/total] a file; seconds vary; no training anywhere", total_steps=4000, steps_per_sec=1 / 1.2)
    g.w("model: large-v3, beam 5\n4000 files to do")
    for k in range(1, 75):
        g.tick(g.jitter(1.2, .3))
        g.w(f"{g.at:%H:%M:%S} [{k}/4000] transcribed clip_{g.random.randrange(99999):05d}.wav ({g.jitter(31, .5):.1f} s audio)")
        g.t(step=k)
        near = {"phase": ["train", "generate"]}
        if k in (22, 50): g.cut(accept=near)
    g.cut(accept=near)


def ranks_short():
    g = Log("short_ranks", "home_grown", "srun -n 6 python loop.py --iters 5000", gpus=3, nodes=2, phase="train", difficulty="medium: terse rank prefixes, ranks up to two iterations apart; s/it", total_steps=5000, steps_per_sec=1 / .9)
    best = 0
    for k in range(1, 25):
        for rank in range(6):
            n = max(1, 200 + k * 3 - g.random.choice([0, 0, 1]))
            loss = 2.9 * math.exp(-k / 40)
            g.w(f"[r{rank}] it {n:05d}/05000 | L={loss:.3f} | {g.jitter(.9):.2f} s/it")
            best = max(best, n)
        g.t(step=best, loss=round(loss, 3))
        near = {"loss": [None]}
        if k in (7, 16): g.cut(accept=near)
    g.cut(accept=near)


def rich_bar():
    g = Log("rich_redraw", "rich", "python run.py", phase="train", difficulty="hard: rich redraws with cursor codes; two tasks, the outer is the epoch; the cut lies within a character", total_epochs=8, total_steps=4000, steps_per_sec=4.0)
    g.w("\x1b[?25l", end="")
    for k in range(1, 49):
        n = k * 40
        epoch, inner = (n - 1) // 500, (n - 1) % 500 + 1
        loss = 1.3 * math.exp(-n / 1500)
        g.w(f"\r\x1b[2K\x1b[1A\x1b[2KEpoch   {bar(epoch, 8, 20, '━', '╺')} {epoch}/8 \x1b[33m{clock(n / 4, True)}\x1b[0m\n\x1b[36mTrain batch\x1b[0m {bar(inner, 500, 20, '━', '╺')} {inner}/500 \x1b[33m{clock(inner / 4, True)}\x1b[0m \x1b[31m{g.jitter(4.0):.1f} it/s\x1b[0m loss: {loss:.4f}", end="")
        if k in (14, 33): g.cut(accept={"epoch": [epoch + 1]})
        g.t(step=n, epoch=epoch, loss=round(loss, 4))
        if k == 13: pass
    g.cuts[0]["truth"].update(step=520, fraction=.13, epoch=1, loss=round(1.3 * math.exp(-520 / 1500), 4), eta_s=870.0)
    g.cuts[0]["accept"]["step"] = [560]; g.cuts[0]["accept"]["loss"] = [round(1.3 * math.exp(-560 / 1500), 4)]
    g.cuts[1]["accept"].update(step=[1320], loss=[round(1.3 * math.exp(-1320 / 1500), 4)])
    g.w("\n\x1b[?25h")
    g.cut(accept={"epoch": [epoch + 1]})


def french():
    g = Log("french_blocks", "home_grown", "python entraine.py", phase="train", difficulty="hard: block glyphs, middle dots, French words; a cut inside a glyph", total_steps=1000, steps_per_sec=.5)
    g.w("chargement des données… terminé")
    for k in range(1, 60):
        n = k * 5
        loss = .9 * math.exp(-n / 400)
        g.w(f"\r{bar(n, 1000, 12, '▰', '▱')} {n / 10:.1f} % · étape {n}/1000 · perte {loss:.4f} · {g.jitter(2.0):.2f} s/étape", end="")
        g.t(step=n, loss=round(loss, 4))
        if k == 18:
            g.w("\r▰▰", end=""); g.cut(back=1)
        if k == 40: g.cut()
    g.w("")
    g.cut()


def alive():
    g = Log("alive_progress", "alive_progress", "python work.py", phase="train", difficulty="medium: alive-progress bars; total and rate in its own order", total_steps=5000, steps_per_sec=9.8)
    for k in range(1, 50):
        n = k * 40
        g.w(f"\rtraining |{bar(n, 5000, 40, '█', '⠀')}| {n}/5000 [{n // 50}%] in {clock(n / 9.8)} (~{clock((5000 - n) / 9.8)}, {g.jitter(9.8, .01):.1f}/s) ", end="")
        g.t(step=n)
        if k in (10, 31): g.cut()
    g.w("")
    g.cut()


def drift():
    g = Log("drift_midway", "home_grown", "python exp.py --updates 3000", phase="train", difficulty="hard: the program's line changes shape half-way; the old pattern never comes again", total_steps=3000, steps_per_sec=3.0)
    for k in range(1, 36):
        n = k * 10
        g.tick(10 / 3)
        g.w(f"{g.at:%H:%M:%S} upd={n:04d} J={2.2 * math.exp(-n / 500):.4f} eta=0.001")
        g.t(step=n)
        near = {"loss": [round(2.2 * math.exp(-n / 500), 4)]}
        if k == 20: g.cut(accept=near)
    g.w("verbosity raised by SIGUSR1")
    for k in range(36, 80):
        n = k * 10
        g.tick(10 / 3)
        cost = 2.2 * math.exp(-n / 500)
        g.w(f"{g.at:%H:%M:%S} [opt] after update {n}: cost {cost:.4f}, |g| {g.jitter(.4, .3):.3f}, {g.jitter(.333):.3f} s per update")
        g.t(step=n)
        near = {"loss": [round(cost, 4)]}
        if k == 50: g.cut(accept=near)
    g.cut(accept=near)


def snakemake():
    g = Log("snakemake_jobs", "snakemake", "snakemake --cores 16", phase="train", difficulty="medium: dates with weekday names; 'k of n steps (p%) done'", total_steps=120, steps_per_sec=1 / 45)
    g.w("Building DAG of jobs...\nUsing shell: /bin/bash\nProvided cores: 16\nJob stats:\njob      count\n-----  -------\nalign      119\nall          1\ntotal      120\n")
    for k in range(1, 40):
        g.tick(45)
        g.w(f"[{g.at:%a %b %e %H:%M:%S %Y}]\nFinished job {120 - k}.\n{k} of 120 steps ({k / 1.2:.0f}%) done")
        g.t(step=k)
        near = {"phase": ["inference", "data_prep"]}
        if k in (12, 27): g.cut(accept=near)
    g.cut(accept=near)


def petsc():
    g = Log("petsc_ts", "petsc", "./heat -ts_max_steps 1000 -ts_monitor -ksp_monitor", phase="train", difficulty="hard: the time step at the line's start, inner solver residuals below it; no wall time", total_steps=1000)
    for k in range(0, 40):
        g.w(f"{k} TS dt 0.01 time {k * .01:g}")
        for j in range(3): g.w(f"      {j} KSP Residual norm {10 ** (-j * 3 - 1) * g.jitter(3, .3):.12e}")
        g.t(step=k)
        near = {"phase": ["inference"]}
        if k in (12, 26): g.cut(accept=near)
    g.cut(accept=near)


def keras3():
    g = Log("keras3_ansi", "keras3", "python train.py", phase="train", difficulty="medium: ANSI bold and colours, heavy line glyphs, ms/step; epoch line above", total_epochs=12, total_steps=18000, steps_per_sec=1 / .061)
    for epoch in range(1, 4):
        g.w(f"\x1b[1mEpoch {epoch}/12\x1b[0m" if False else f"Epoch {epoch}/12")
        for k in range(1, 16):
            if epoch == 3 and k > 8: break
            n = k * 100
            loss = 1.8 * math.exp(-((epoch - 1) * 1500 + n) / 3000)
            left = (1500 - n) * .061
            g.w(f"\r\x1b[1m{n:4d}/1500\x1b[0m \x1b[32m{'━' * (n * 20 // 1500)}\x1b[0m\x1b[37m{'━' * (20 - n * 20 // 1500)}\x1b[0m \x1b[1m{clock(left) if left > 60 else str(int(left)) + 's'}\x1b[0m {g.jitter(61, .01):.0f}ms/step - accuracy: 0.7{k % 10} - loss: {loss:.4f}", end="")
            g.t(step=(epoch - 1) * 1500 + n, epoch=epoch, loss=round(loss, 4))
            if (epoch, k) in ((1, 7), (2, 11)): g.cut()
        if epoch < 3:
            g.w(f"\r\x1b[1m1500/1500\x1b[0m \x1b[32m{'━' * 20}\x1b[0m\x1b[37m\x1b[0m \x1b[1m94s\x1b[0m 62ms/step - accuracy: 0.7412 - loss: {loss:.4f} - val_accuracy: 0.7301 - val_loss: {loss * 1.1:.4f}")
    g.cut()


def mnist():
    g = Log("mnist_samples", "pytorch_example", "python main.py --epochs 14 --batch-size 64", phase="train", difficulty="medium: samples in the brackets; no time; test line after the epoch", total_epochs=14, total_steps=13132)
    for epoch in range(1, 4):
        for k in range(0, 938, 30):
            if epoch == 3 and k > 400: break
            loss = 2.3 * math.exp(-((epoch - 1) * 938 + k) / 500) + .02
            g.w(f"Train Epoch: {epoch} [{k * 64}/60000 ({100 * k / 938:.0f}%)]\tLoss: {loss:.6f}")
            g.t(step=(epoch - 1) * 938 + k, epoch=epoch, loss=round(loss, 6))
            if (epoch, k) in ((1, 600), (2, 480)): g.cut()
        if epoch < 3: g.w(f"\nTest set: Average loss: 0.0501, Accuracy: 9836/10000 (98%)\n")
    g.cut()


def imagenet():
    g = Log("imagenet_meters", "pytorch_example", "python main.py -a resnet50 --epochs 90 --dist-url tcp://n0:2300", gpus=8, phase="train", difficulty="medium: tab-separated meters value (average); 0-based epochs; Test lines after the epoch", total_epochs=90, total_steps=45090, steps_per_sec=2.5)
    g.w("=> creating model 'resnet50'")
    for epoch in range(4, 6):
        for k in range(0, 501, 20):
            if epoch == 5 and k > 260: break
            loss = 4.4 * math.exp(-((epoch - 4) * 501 + k) / 3000)
            g.w(f"Epoch: [{epoch}][{k + 1:3d}/501]\tTime  {g.jitter(.4, .02):.3f} (  0.401)\tData  0.002 (  0.011)\tLoss {loss:.4e} ({loss * 1.01:.4e})\tAcc@1  31.25 ( 30.11)\tAcc@5  55.47 ( 54.21)")
            g.t(step=epoch * 501 + k + 1, epoch=epoch, loss=round(loss, 4))
            if (epoch, k) == (4, 240): g.cut()
        if epoch == 4:
            for k in range(0, 99, 14): g.w(f"Test: [{k + 1:2d}/98]\tTime  0.150 (  0.210)\tLoss 2.1e+00 (2.2e+00)\tAcc@1  50.00 ( 48.10)")
            g.cut(phase="eval", accept={"step": [5 * 501]})
            g.w(" *   Acc@1 48.321 Acc@5 73.112")
    g.cut()


def torchtune():
    g = Log("torchtune_bar", "torchtune", "tune run full_finetune_single_device --config c.yaml", phase="train", difficulty="medium: epoch|step|Loss before the bar; an epoch a bar; epochs in the echoed config", total_epochs=3, total_steps=1200, steps_per_sec=1 / 1.5)
    g.w("INFO:torchtune.utils._logging:Running FullFinetuneRecipe with resolved config:\n\nbatch_size: 2\nepochs: 3\ngradient_accumulation_steps: 8\nmax_steps_per_epoch: null\nseed: null\n")
    for epoch in range(1, 3):
        for k in range(1, 401, 10):
            if epoch == 2 and k > 160: break
            n = (epoch - 1) * 400 + k
            loss = 1.9 * math.exp(-n / 700)
            g.w(f"\r{epoch}|{n}|Loss: {loss:.6f}:  {k // 4:2d}%|{bar(k, 400)}| {k}/400 [{clock(k * 1.5)}<{clock((400 - k) * 1.5)},  {g.jitter(1.5):.2f}s/it]", end="")
            g.t(step=n, epoch=epoch, loss=round(loss, 6))
            if (epoch, k) in ((1, 151), (2, 31)): g.cut()
        g.w("")
    g.cut()


def mlx():
    g = Log("mlx_lora", "mlx", "mlx_lm.lora --train --model m --data d", phase="train", difficulty="easy-medium: Iter k with It/sec; Val lines between; total in 'iters: N'", total_steps=1000, steps_per_sec=1.9)
    g.w("Loading pretrained model\nLoading datasets\nTraining\nTrainable parameters: 0.024% (1.704M/7241.732M)\nStarting training..., iters: 1000\nIter 1: Val loss 2.731, Val took 20.112s")
    for k in range(1, 52):
        n = k * 10
        loss = 2.6 * math.exp(-n / 600)
        g.w(f"Iter {n}: Train loss {loss:.3f}, Learning Rate 1.000e-05, It/sec {g.jitter(1.9):.3f}, Tokens/sec {g.jitter(812):.3f}, Trained Tokens {n * 427}, Peak mem 14.371 GB")
        g.t(step=n, loss=round(loss, 3))
        if n % 200 == 0: g.w(f"Iter {n}: Val loss {loss * 1.1:.3f}, Val took 20.322s")
        if n % 100 == 0: g.w(f"Iter {n}: Saved adapter weights to adapters/adapters.safetensors and adapters/{n:07d}_adapters.safetensors.")
        if k in (14, 37): g.cut()
    g.cut()


def deepmd():
    g = Log("deepmd_batches", "deepmd", "dp train input.json", phase="train", difficulty="medium: 'batch n' with the seconds of the last hundred; stamps; total in the echoed input", total_steps=400000, steps_per_sec=100 / 3.6)
    g.w('[2025-03-04 09:15:00,101] DEEPMD INFO    ---Summary of the training---------------------------------------\n[2025-03-04 09:15:00,101] DEEPMD INFO    running on:           n11\n"numb_steps": 400000,\n"disp_freq": 100,\n[2025-03-04 09:15:03,881] DEEPMD INFO    start training at lr 1.00e-03 (== 1.00e-03), decay_step 5000, decay_rate 0.950006, final lr will be 3.51e-08')
    for k in range(1, 66):
        n = k * 100
        g.tick(3.6)
        g.w(f"[{g.at:%Y-%m-%d %H:%M:%S},{k * 37 % 1000:03d}] DEEPMD INFO    batch {n:7d} training time {g.jitter(3.55):.2f} s, testing time 0.02 s")
        if k % 10 == 0: g.w(f"[{g.at:%Y-%m-%d %H:%M:%S},{k * 37 % 1000:03d}] DEEPMD INFO    saved checkpoint model.ckpt")
        g.t(step=n)
        if k in (15, 44): g.cut()
    g.cut()


def stylegan():
    g = Log("stylegan_kimg", "stylegan3", "python train.py --cfg=stylegan3-t --kimg 25000", gpus=8, phase="train", difficulty="hard: ticks and thousands of images; seconds a kimg; the total only in the command")
    g.w("Training for 25000 kimg...\n")
    for k in range(0, 45):
        kimg = k * 4.0
        g.w(f"tick {k:<5d} kimg {kimg:<8.1f} time {int(kimg * 15.5 // 60)}m {int(kimg * 15.5 % 60):02d}s       sec/tick {g.jitter(62, .01):<7.1f} sec/kimg {g.jitter(15.5, .01):<7.2f} maintenance 0.1    cpumem 5.21   gpumem 13.02  reserved 14.1  augment {k * .002:.3f}")
        g.t(fraction=kimg / 25000, eta_s=(25000 - kimg) * 15.5)
        near = {"step": [k, kimg, kimg * 1000], "total_steps": [25000, 25000000, 6250], "steps_per_sec": [1 / 62, 1 / 15.5, 1000 / 15.5], "eta_s": [None]}
        if k in (13, 30): g.cut(accept=near)
    g.cut(accept=near)


def resume_drop():
    g = Log("resume_other_speed", "home_grown", "python work.py --max-steps 8000", gpus=4, phase="train", difficulty="hard: two lives in one log; the second goes back to the checkpoint and is twice as slow", total_steps=8000)
    for k in range(1, 30):
        n = k * 20
        g.tick(5)
        g.w(f"{g.at:%Y-%m-%d %H:%M:%S} | INFO | step {n:>6d} | nll {3.1 * math.exp(-n / 900):.4f} | tok 4096")
        g.t(step=n, steps_per_sec=4.0 if k > 1 else None, loss=round(3.1 * math.exp(-n / 900), 4))
        if k == 18: g.cut(accept={"loss": [None]})
        if n == 500: g.w(f"{g.at:%Y-%m-%d %H:%M:%S} | INFO | wrote state/step_500.pt")
    g.w("slurmstepd: error: *** STEP 99121.0 ON n04 CANCELLED DUE TO NODE FAILURE ***\nrestarting (1/3)")
    g.tick(240)
    g.w(f"{g.at:%Y-%m-%d %H:%M:%S} | INFO | resuming from state/step_500.pt")
    for k in range(1, 34):
        n = 500 + k * 20
        g.tick(10)
        g.w(f"{g.at:%Y-%m-%d %H:%M:%S} | INFO | step {n:>6d} | nll {3.1 * math.exp(-n / 900):.4f} | tok 4096")
        g.t(step=n, steps_per_sec=2.0, loss=round(3.1 * math.exp(-n / 900), 4))
        if k == 9: g.cut(accept={"loss": [None]})
    g.cut(accept={"loss": [None]})


def epochs_words():
    g = Log("epoch_sentences", "home_grown", "python run_gnn.py", phase="train", difficulty="medium: a sentence an epoch with the seconds of it; evaluation sentence after each", total_epochs=200)
    g.w("graph: 169343 nodes, 1166243 edges\nwill train for 200 epochs")
    for k in range(1, 50):
        loss = 2.0 * math.exp(-k / 40)
        g.w(f"Finished epoch {k} of 200 in {g.jitter(7.5):.2f} seconds, mean training loss {loss:.4f}\n   validation accuracy {40 + k * .3:.2f}%, test accuracy {39 + k * .3:.2f}%")
        g.t(epoch=k, fraction=k / 200, loss=round(loss, 4), eta_s=(200 - k) * 7.5)
        near = {"step": [k], "total_steps": [200], "steps_per_sec": [1 / 7.5], "phase": ["eval"]}
        if k in (14, 33): g.cut(accept=near)
    g.cut(accept=near)


def main():
    for make in (gromacs, lammps, namd, xgboost, lightgbm, catboost, tianshou, cleanrl, spinningup, rl_games, rsl_rl, maxtext, clu, composer, terse_json, logfmt, chinese, german, percent_only,
                 caffe, darknet, icefall, opennmt, marian, flair, spacy, fastai, vllm, access_log, transcribe, ranks_short, rich_bar, french, alive, drift, snakemake, petsc, keras3, mnist, imagenet,
                 torchtune, mlx, deepmd, stylegan, resume_drop, epochs_words):
        make()
    write("own", "PO")


def write(split, prefix):
    """Write the cases made so far as one set."""
    target = os.path.join(HERE, split)
    shutil.rmtree(target, ignore_errors=True)
    for number, log in enumerate(CASES, 1):
        assert len(log.cuts) == 3, log.slug
        cid = f"{prefix}{number:02d}"
        folder = os.path.join(target, cid)
        os.makedirs(folder)
        with open(os.path.join(folder, "stdout.log"), "wb") as fh: fh.write(log.raw)
        with open(os.path.join(folder, "job.json"), "w", encoding="utf-8") as fh: json.dump({"command": log.command, "gpus": log.gpus, "nodes": log.nodes}, fh, ensure_ascii=False, indent=1); fh.write("\n")
        label = {"id": cid, "split": split, "slug": log.slug, "framework": log.framework, "cuts": log.cuts, "source": [], "difficulty": log.difficulty}
        with open(os.path.join(folder, "label.json"), "w", encoding="utf-8") as fh: json.dump(label, fh, ensure_ascii=False, indent=1); fh.write("\n")


if __name__ == "__main__":
    main()
