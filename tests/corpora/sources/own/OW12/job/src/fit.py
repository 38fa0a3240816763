import argparse
import logging
import tomllib
from pathlib import Path

import timm
import torch
from torchvision.datasets import StanfordCars

log = logging.getLogger('fit')


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument('--config', type=Path, required=True)
    parser.add_argument('--batch-size', type=int)
    parser.add_argument('--compile', action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument('--resume', type=Path)
    return parser.parse_args()


def main():
    args = parse()
    with open(args.config, 'rb') as f:
        cfg = tomllib.load(f)
    batch_size = args.batch_size or cfg['train']['batch_size']
    model = timm.create_model(cfg['model']['name'], pretrained=cfg['model']['pretrained'], num_classes=196).cuda()
    if args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg['train']['lr'])
    loader = torch.utils.data.DataLoader(StanfordCars(cfg['data']['root']), batch_size=batch_size, shuffle=True)
    start = 0
    if args.resume:
        state = torch.load(args.resume)
        model.load_state_dict(state['model'])
        start = state['epoch'] + 1
    for epoch in range(start, cfg['train']['epochs']):
        for images, labels in loader:
            with torch.autocast('cuda', torch.bfloat16 if cfg['train']['precision'] == 'bf16' else torch.float16):
                loss = torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        log.info('epoch %d loss %.3f', epoch, loss)
        if epoch % cfg['train']['checkpoint_every'] == 0:
            torch.save({'model': model.state_dict(), 'epoch': epoch}, f'ck{epoch}.pt')


if __name__ == '__main__':
    logging.basicConfig(level=logging.INFO)
    main()
