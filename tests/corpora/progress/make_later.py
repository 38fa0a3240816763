#!/usr/bin/env python3
"""Write the set `later/`: logs in styles that neither the development set nor `own/` has, written when the tracker stood.

The first run over them, before anything was changed, is the honest figure (docs/log-monitor-progress.md); since then they guard.
"""
import json, math
import make_own
from make_own import CASES, Log


def loguru():
    g = Log("loguru_t_iter", "loguru", "python -m recon.fit --cfg scene12", phase="train", difficulty="medium: loguru's columns; iter=n/total with a share; seconds an iteration", total_steps=90000)
    g.w("2025-03-04 09:15:00.004 | INFO     | recon.data:load:57 - 312 views, 5123 rays/batch\n2025-03-04 09:15:03.311 | DEBUG    | recon.fit:main:88 - compiling kernels took 3.1s")
    for k in range(1, 60):
        n = k * 150
        g.tick(61.8)
        g.w(f"{g.at:%Y-%m-%d %H:%M:%S}.{k * 91 % 1000:03d} | INFO     | recon.fit:loop:142 - iter={n}/90000 ({n / 900:.2f}%) lr=3.0e-04 L_total={2.4 * math.exp(-k / 30):.4f} psnr={18 + k / 9:.2f} t_iter={g.jitter(.412):.3f}s")
        g.t(step=n, steps_per_sec=1 / .412, loss=round(2.4 * math.exp(-k / 30), 4))
        if k % 20 == 0: g.w(f"{g.at:%Y-%m-%d %H:%M:%S}.999 | SUCCESS  | recon.eval:render:31 - rendered 24/24 held-out views, psnr=24.1")
        if k in (14, 39): g.cut()
    g.cut()


def structlog():
    g = Log("structlog_console", "structlog", "python launch.py +exp=b7", gpus=2, phase="train", difficulty="medium: key=value after an event's name; validation events carry their own step", total_steps=20000)
    for k in range(1, 50):
        n = k * 50
        g.tick(20)
        loss = 3.3 * math.exp(-k / 25)
        g.w(f"{g.at:%Y-%m-%dT%H:%M:%S}.{k * 37 % 1000:03d}Z [info     ] optimizer_step                 global_step={n} max_steps=20000 train_loss={loss:.4f} grad_norm={g.jitter(1.1, .2):.3f} seconds_per_step={g.jitter(.4):.4f} rank=0")
        g.t(step=n, steps_per_sec=2.5, loss=round(loss, 4))
        if k % 10 == 0: g.w("\n".join(f"{g.at:%Y-%m-%dT%H:%M:%S}.9{j:02d}Z [info     ] validation_batch               batch={j} batches=40 val_loss={loss + .2:.4f} rank=0" for j in range(1, 5)))
        if k in (11, 33): g.cut()
    g.cut()


def rich_handler():
    g = Log("rich_handler_rounds", "rich", "python -m fed.server --rounds 150 --clients 20", phase="train", difficulty="hard: federated rounds; the source column at the right end; client lines in between", total_steps=150)
    g.w("[09:15:00] INFO     Federation of 20 clients, 5 picked a round                    server.py:41")
    for k in range(1, 48):
        g.tick(24)
        g.w(f"[{g.at:%H:%M:%S}] INFO     Round {k}/150 · objective {1.9 * math.exp(-k / 50):.4f} · {g.jitter(24.):.1f} s/round          server.py:88")
        for c in (3, 7): g.w(f"           INFO     client {c}: 12 local batches, drift {g.jitter(.03, .3):.3f}             client.py:120")
        g.t(step=k, steps_per_sec=1 / 24, loss=round(1.9 * math.exp(-k / 50), 4))
        if k in (9, 30): g.cut(accept={"loss": [None], "epoch": [k], "total_epochs": [150]})
    g.cut(accept={"loss": [None], "epoch": [47], "total_epochs": [150]})


def nek():
    g = Log("nek_cfd_steps", "nek5000", "mpirun -np 64 ./nek5000", nodes=2, gpus=1, phase="train", difficulty="hard: fixed columns; the two last numbers are elapsed and per-step seconds; numSteps in the echoed parameters", total_steps=5000)
    g.w(" Reading /run/ext_cyl.par\n GENERAL: numSteps        = 5000\n GENERAL: dt              = 1.0e-03\n GENERAL: writeInterval   = 500\n nelgt/nelgv/lelt:       4096        4096         100\n")
    for k in range(1, 120):
        g.w(f"Step{k:7d}, t={k * 1e-3:14.7E}, DT= 1.0000000E-03, C={g.jitter(.31):7.3f} {k * .28:.4E} {g.jitter(.28):.4E}\n             Solving for Hmholtz scalars\n{k:11d}    PRES gmres   {12 + k % 3:6d}   3.1E-06   1.0E-04")
        g.t(step=k, steps_per_sec=1 / .28)
        if k in (30, 77): g.cut(accept={"phase": ["inference"]})
    g.cut(accept={"phase": ["inference"]})


def rllib():
    g = Log("rllib_status_table", "rllib", "python tune_ppo.py --stop-iters 200", phase="train", difficulty="hard: a table drawn again for every report; iter, total time and timesteps are columns", total_steps=200)
    for k in range(1, 34):
        g.w(f"== Status ==\nCurrent time: 2025-03-04 09:{15 + k * 7 // 60:02d}:{k * 7 % 60:02d} (running for 00:{k * 7 // 60:02d}:{k * 7 % 60:02d}.12)\nMemory usage on this node: 9.3/62.5 GiB\n+-------------------------+----------+----------------+--------+------------------+--------+----------+\n| Trial name              | status   | loc            |   iter |   total time (s) |     ts |   reward |\n|-------------------------+----------+----------------+--------+------------------+--------+----------|\n| PPO_Walker_5f1c2_00000  | RUNNING  | 10.0.0.4:2113  | {k:6d} | {g.jitter(k * 6.2, .004):16.3f} | {k * 4000:6d} | {20 + k * 3.1:8.2f} |\n+-------------------------+----------+----------------+--------+------------------+--------+----------+\n")
        g.t(step=k, steps_per_sec=1 / 6.2)
        near = {"step": [k * 4000], "steps_per_sec": [4000 / 6.2], "total_steps": [800000]}
        if k in (10, 22): g.cut(accept=near)
    g.cut(accept=near)


def spanish():
    g = Log("spanish_lotes", "home_grown", "python entrenar.py", phase="train", difficulty="hard: Spanish words and decimal commas; batches within the epoch; what remains is of the epoch", total_epochs=40, total_steps=32000, steps_per_sec=12.5)
    g.w("Cargando datos… 51200 muestras\nComienza el entrenamiento: 40 épocas, 800 lotes por época")
    for e in range(1, 4):
        for b in range(50, 801, 50):
            loss = 1.8 * math.exp(-((e - 1) * 800 + b) / 1500)
            g.w(f"Época {e}/40 | lote {b} de 800 | pérdida {f'{loss:.4f}'.replace('.', ',')} | {f'{g.jitter(12.5):.1f}'.replace('.', ',')} lotes/s | faltan 00:{(800 - b) * 2 // 25:02d}")
            g.t(step=(e - 1) * 800 + b, epoch=e, loss=round(loss, 4))
            if (e, b) in ((1, 400), (2, 550)): g.cut(accept={"epoch": [e - 1 + b / 800]})
        g.w(f"   validación: exactitud {f'{50 + e * 4.2:.1f}'.replace('.', ',')} %")
    g.cut(accept={"phase": ["eval"], "epoch": [2 + 1.0]})


def nested_json():
    g = Log("nested_json_lines", "home_grown", "srun -n 8 ./trainer --conf /cfg/k.json", gpus=4, nodes=2, phase="train", difficulty="medium: nested JSON objects; milliseconds an iteration under perf; heartbeat objects in between", total_steps=50000)
    for k in range(1, 60):
        n = k * 40
        loss = 4 * math.exp(-k / 35)
        g.w(json.dumps({"ts": 1741079700.0 + k * 9.24, "lvl": "info", "msg": "train", "iter": {"cur": n, "max": 50000}, "metrics": {"ce": round(loss, 4), "acc": round(.2 + k / 100, 3)}, "perf": {"ms_per_iter": round(g.jitter(231), 1)}}))
        if k % 6 == 0: g.w(json.dumps({"ts": 1741079701.0 + k * 9.24, "lvl": "debug", "msg": "heartbeat", "uptime_s": k * 9, "seq": k // 6}))
        g.t(step=n, steps_per_sec=1000 / 231, loss=round(loss, 4))
        if k in (13, 41): g.cut(accept={"loss": [None]})
    g.cut(accept={"loss": [None]})


def monte_carlo():
    g = Log("mpi_sweeps_thermalise", "home_grown", "mpirun -np 16 ./ising3d run.in", nodes=2, gpus=1, phase="train", difficulty="hard: a thermalisation with its own total before the measured sweeps; sixteen ranks repeat the lines")
    g.w("3D Ising, L = 128, beta = 0.22165\nranks: 16\nthermalisation: 2000 sweeps, measurement: 100000 sweeps")
    for k in range(1, 11):
        for r in (0, 5): g.w(f"[rank {r:02d}] thermalisation sweep {k * 200} of 2000, acc {g.jitter(.41):.3f}, {g.jitter(.0132):.4f} s/sweep")
    g.t(total_steps=100000, steps_per_sec=1 / .0132)
    for k in range(1, 45):
        for r in (0, 5): g.w(f"[rank {r:02d}] measurement sweep {k * 500} of 100000, acc {g.jitter(.41):.3f}, {g.jitter(.0132):.4f} s/sweep, E/N = {g.jitter(-1.43):.5f}")
        g.t(step=k * 500)
        near = {"phase": ["inference"]}
        if k in (8, 29): g.cut(accept=near)
    g.cut(accept=near)


def russian():
    g = Log("russian_epochs", "home_grown", "python обучение.py --эпох 60", phase="train", difficulty="hard: Russian words; seconds an epoch; minutes left", total_epochs=60)
    g.w("Загружено 48210 примеров")
    for k in range(1, 31):
        loss = .9 * math.exp(-k / 20)
        g.w(f"Эпоха {k} из 60: потери={loss:.4f}, точность={60 + k}%, {g.jitter(14.2):.1f} сек/эпоха, осталось {int((60 - k) * 14.2 // 60)} мин")
        g.t(epoch=k, fraction=k / 60, loss=round(loss, 4), eta_s=(60 - k) * 14.2)
        near = {"step": [k], "total_steps": [60], "steps_per_sec": [1 / 14.2]}
        if k in (8, 19): g.cut(accept=near)
    g.cut(accept=near)


# --- a second batch, written when what the first had shown was mended --------------------------------------------------------


def column_bars():
    g = Log("peft_table", "home_grown","python tune.py --num_steps 3000",phase="train",total_steps=3000)
    g.w("Step | Training Loss | Grad Norm | Time/Step (s)")
    for k in range(1,60):
        n=k*25; g.w(f"{n:4d} | {2*math.exp(-k/30):13.4f} | {1.1:9.3f} | {g.jitter(.8):13.3f}"); g.t(step=n,steps_per_sec=1/.8,loss=round(2*math.exp(-k/30),4))
        if k in (12,40): g.cut()
    g.cut()


def epoch_minutes():
    g = Log("accel_epoch_avg", "home_grown","accelerate launch t.py --epochs 12",phase="train",total_epochs=12)
    for e in range(1,8):
        l=1.5*math.exp(-e/5); g.tick(300)
        g.w(f"{g.at:%m/%d/%Y %H:%M:%S} - INFO - __main__ - [Epoch {e:02d}/12] avg_train_loss: {l:.4f} | val_acc: {.5+e/30:.3f} | elapsed: {e*300/60:.1f} min")
        g.t(epoch=e,loss=round(l,4),fraction=e/12,eta_s=(12-e)*300)
        near={"step":[e],"total_steps":[12],"steps_per_sec":[1/300],"phase":["eval"]}
        if e in (3,5): g.cut(accept=near)
    g.cut(accept=near)


def residuals():
    g = Log("ansys_iter", "home_grown","fluent 3ddp -t8 -i run.jou",phase="train",total_steps=1000)
    g.w("  iter  continuity  x-velocity  y-velocity     time/iter")
    for k in range(1,70):
        g.w(f"{k:6d}  {1e-2*math.exp(-k/20):.4e}  {1e-3:.4e}  {1.1e-3:.4e}  {(1000-k)*2//3600}:{(1000-k)*2//60%60:02d}:{(1000-k)*2%60:02d} {1000-k:5d}")
        g.t(step=k,steps_per_sec=.5)
        near={"total_steps":[None],"fraction":[None],"phase":["inference"],"steps_per_sec":[None],"eta_s":[None]}
        if k in (20,50): g.cut(accept=near)
    g.cut(accept=near)


def go_logfmt():
    g = Log("go_style_kv", "home_grown","./trainer -config c.json -iterations 40000",phase="train",total_steps=40000)
    for k in range(1,60):
        n=k*100; g.tick(12)
        g.w(f'time="{g.at:%Y-%m-%dT%H:%M:%SZ}" level=info msg="batch done" iteration={n} loss={2.2*math.exp(-k/40):.5f} duration=118ms queue=3')
        g.t(step=n,steps_per_sec=100/12,loss=round(2.2*math.exp(-k/40),5))
        if k in (15,45): g.cut()
    g.cut()


def japanese():
    g = Log("japanese_bar", "home_grown","python gakushu.py",phase="train",total_epochs=30)
    for ep in range(1,20):
        l=.9*math.exp(-ep/12); g.w(f"エポック {ep}/30  損失: {l:.4f}  精度: {70+ep}%  経過時間: {ep*20}秒  残り時間: {(30-ep)*20}秒")
        g.t(epoch=ep,loss=round(l,4),fraction=ep/30,eta_s=(30-ep)*20)
        near={"step":[ep],"total_steps":[30],"steps_per_sec":[1/20]}
        if ep in (6,13): g.cut(accept=near)
    g.cut(accept=near)


def postfix_bar():
    g = Log("tqdm_desc_postfix", "home_grown","python x.py",phase="train",total_steps=2000)
    for k in range(1,90):
        n=k*10; l=3*math.exp(-k/50)
        g.w(f"\rtrain: {n*100//2000:3d}%|{'#'*(n//100):<20}| {n}/2000 [{n//4//60:02d}:{n//4%60:02d}<{(2000-n)//4//60:02d}:{(2000-n)//4%60:02d},  4.0batch/s, ema_loss={l:.3f}, lr=1e-4]",end="")
        g.t(step=n,steps_per_sec=4.0,loss=round(l,3))
        if k in (30,60): g.cut()
        if k==70:
            g.w("")
            for j in range(1,20): g.w(f"\rval:   {j*5:3d}%|{'#'*j:<20}| {j*5}/100 [00:{j:02d}<00:{20-j:02d},  5.0batch/s]",end="")
            g.w("")
    g.cut()


def lattice():
    g = Log("cmake_percent_solver", "home_grown","./lbm --tmax 250000",phase="train",total_steps=250000)
    for k in range(1,50):
        n=k*1000; g.w(f"[INFO ] t={n:>8d}/{250000} ({n/2500:5.1f}%) MLUPS={g.jitter(812):.1f} max|u|=0.0{k%9}1 wall={n/500:.1f}s")
        g.t(step=n,steps_per_sec=500.)
        near={"phase":["inference"]}
        if k in (14,37): g.cut(accept=near)
    g.cut(accept=near)


def episodes():
    g = Log("episodes_rl", "home_grown","python dqn.py --episodes 800",phase="train",total_steps=800)
    for k in range(1,120):
        g.tick(3); g.w(f"{g.at:%H:%M:%S} Episode {k} finished after {100+k} timesteps, return {20+k/3:.1f}, epsilon {1-k/800:.3f}")
        g.t(step=k,steps_per_sec=1/3)
        near={"epoch":[k],"total_epochs":[800]}
        if k in (30,80): g.cut(accept=near)
    g.cut(accept=near)


def flat_json():
    g = Log("json_flat_samples", "home_grown","python -m pre --global-batch-size 512 --train-samples 5120000",gpus=8,phase="train",total_steps=10000)
    for k in range(1,50):
        n=k*10; print_l=9*math.exp(-k/40)
        g.w(json.dumps({"time":f"2025-03-04T09:{15+k//6:02d}:{k*10%60:02d}","step":n,"samples_seen":n*512,"train/loss":round(print_l,4),"throughput/tokens_per_sec":g.jitter(1.02e6),"time/step_sec":round(g.jitter(1.0),3)}))
        g.t(step=n,steps_per_sec=1.0,loss=round(print_l,4))
        near={"total_steps":[None],"fraction":[None],"eta_s":[None]}
        if k in (12,33): g.cut(accept=near)
    g.cut(accept=near)


def portuguese():
    g = Log("portuguese", "home_grown","python treinar.py",phase="train",total_epochs=25)
    for ep in range(1,15):
        l=.8*math.exp(-ep/9); g.tick(40); g.w(f"[{g.at:%d/%m/%Y %H:%M:%S}] Época {ep} de 25 concluída | perda de treino = {l:.4f} | perda de validação = {l*1.1:.4f}")
        g.t(epoch=ep,loss=round(l,4),fraction=ep/25,eta_s=(25-ep)*40)
        near={"step":[ep],"total_steps":[25],"steps_per_sec":[1/40],"phase":["eval"]}
        if ep in (5,10): g.cut(accept=near)
    g.cut(accept=near)


def main():
    CASES.clear()
    for make in (loguru, structlog, rich_handler, nek, rllib, spanish, nested_json, monte_carlo, russian,
                 column_bars, epoch_minutes, residuals, go_logfmt, japanese, postfix_bar, lattice, episodes, flat_json, portuguese): make()
    make_own.write("later", "PL")


if __name__ == "__main__":
    main()
