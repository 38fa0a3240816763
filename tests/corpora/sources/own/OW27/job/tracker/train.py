import argparse
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import DetrForObjectDetection
from tracker.presets import ALL

CHECKPOINT = 'facebook/detr-resnet-50'


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument('--preset', required=True)
    parser.add_argument('--amp', action='store_true')
    parser.add_argument('--resume')
    opts = parser.parse_args(argv)
    settings = ALL[opts.preset]
    torch.distributed.init_process_group('nccl')
    model = DistributedDataParallel(DetrForObjectDetection.from_pretrained(CHECKPOINT).cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.cuda.amp.GradScaler(enabled=opts.amp)
    if opts.resume:
        model.module.load_state_dict(torch.load(opts.resume))
    total_steps = settings['epochs'] * settings['steps_per_epoch']
    batch_size = settings['batch']
    for step in range(total_steps):
        with torch.cuda.amp.autocast(enabled=opts.amp):
            loss = model(**fetch(settings['dataset'], batch_size)).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % 500 == 0:
            print(step, total_steps, loss.item())
            torch.save(model.module.state_dict(), f'step{step}.pt')


if __name__ == '__main__':
    main()
