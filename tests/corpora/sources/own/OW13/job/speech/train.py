import argparse
import configparser
import os

import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter
from transformers import WavLMForCTC


def settings():
    parser = argparse.ArgumentParser()
    parser.add_argument('--ini', required=True)
    parser.add_argument('--set', action='append', default=[], metavar='SECTION.KEY=VALUE')
    args = parser.parse_args()
    ini = configparser.ConfigParser()
    ini.read(args.ini)
    for item in args.set:
        where, value = item.split('=', 1)
        section, key = where.split('.', 1)
        ini[section][key] = value
    return ini


def main():
    ini = settings()
    train = ini['train']
    rank = int(os.environ['SLURM_PROCID'])
    dist.init_process_group('nccl', rank=rank, world_size=int(os.environ['SLURM_NTASKS']))
    device = int(os.environ['SLURM_LOCALID'])
    model = WavLMForCTC.from_pretrained('microsoft/' + ini['model']['name']).cuda(device)
    model.gradient_checkpointing_enable()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])
    optimizer = getattr(torch.optim, train['optimizer'])(model.parameters(), lr=train.getfloat('lr'))
    scaler = torch.cuda.amp.GradScaler()
    writer = SummaryWriter('/runs/wavlm') if rank == 0 else None
    step = load_latest(model, optimizer) if os.path.exists('/ckpt/wavlm/latest.pt') else 0
    for update in range(step, train.getint('updates')):
        for _ in range(train.getint('accumulate')):
            with torch.autocast('cuda', dtype=torch.float16):
                loss = model(**batch(ini['data']['root'], train.getint('batch'))).loss / train.getint('accumulate')
            scaler.scale(loss).backward()
        scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
        if update % train.getint('save_every') == 0 and rank == 0:
            torch.save({'model': model.module.state_dict(), 'update': update}, '/ckpt/wavlm/latest.pt')
        if writer and update % 50 == 0:
            writer.add_scalar('loss', loss.item(), update)


main()
