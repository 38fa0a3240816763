import os
import hydra
import torch
import torch.distributed as dist
import torchvision
from omegaconf import DictConfig, OmegaConf
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

OmegaConf.register_new_resolver('mul', lambda a, b: a * b)


@hydra.main(version_base=None, config_path='conf', config_name='config')
def main(cfg: DictConfig) -> None:
    rank = int(os.environ['SLURM_PROCID'])
    dist.init_process_group('nccl', rank=rank, world_size=int(os.environ['SLURM_NTASKS']))
    torch.cuda.set_device(int(os.environ['SLURM_LOCALID']))
    model = getattr(torchvision.models.segmentation, cfg.model.name)(num_classes=21).cuda()
    model = DistributedDataParallel(model)
    optimizer = getattr(torch.optim, cfg.optim.name)(model.parameters(), lr=cfg.optim.lr)
    writer = SummaryWriter() if cfg.log.tensorboard and rank == 0 else None
    start = 0
    if cfg.ckpt.resume:
        state = torch.load(cfg.ckpt.resume)
        model.load_state_dict(state['model']); start = state['epoch']
    loader = make_loader(cfg.data.name, cfg.data.batch)
    for epoch in range(start, cfg.epochs):
        for x, y in loader:
            with torch.autocast('cuda', dtype=torch.bfloat16, enabled=cfg.precision == 'bf16'):
                loss = torch.nn.functional.cross_entropy(model(x)['out'], y)
            loss.backward(); optimizer.step(); optimizer.zero_grad()
        print('epoch', epoch, loss.item())
        if epoch % cfg.ckpt.every == 0:
            torch.save({'model': model.state_dict(), 'epoch': epoch}, f'{cfg.ckpt.dir}/{epoch}.pt')


if __name__ == '__main__':
    main()
