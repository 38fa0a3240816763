import argparse
from accelerate import Accelerator
from accelerate.logging import get_logger
from datasets import load_dataset
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, default_data_collator, get_scheduler
from tqdm.auto import tqdm

logger = get_logger(__name__)


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model_name_or_path", required=True)
    ap.add_argument("--per_device_train_batch_size", type=int, default=8)
    ap.add_argument("--num_train_epochs", type=int, default=3)
    ap.add_argument("--learning_rate", type=float, default=5e-5)
    ap.add_argument("--output_dir", default="out")
    ap.add_argument("--with_tracking", action="store_true")
    ap.add_argument("--resume_from_checkpoint", default=None)
    return ap.parse_args()


def main():
    args = parse()
    accelerator = Accelerator(log_with="wandb") if args.with_tracking else Accelerator()
    raw = load_dataset("squad_v2")
    tok = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForQuestionAnswering.from_pretrained(args.model_name_or_path)
    train = raw["train"].map(lambda b: tok(b["question"], b["context"], truncation=True), batched=True)
    loader = DataLoader(train, batch_size=args.per_device_train_batch_size, shuffle=True, collate_fn=default_data_collator)
    opt = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    if args.resume_from_checkpoint:
        accelerator.load_state(args.resume_from_checkpoint)
    if args.with_tracking:
        accelerator.init_trackers("qa", vars(args))
    for epoch in range(args.num_train_epochs):
        for batch in tqdm(loader):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
        accelerator.save_state(f"{args.output_dir}/epoch_{epoch}")


if __name__ == "__main__":
    main()
