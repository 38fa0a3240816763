import argparse
import os

from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss

cli = argparse.ArgumentParser()
cli.add_argument('--epochs', type=int, default=1)
opts = cli.parse_args()

model = SentenceTransformer(os.environ['BASE_MODEL'])
pairs = load_dataset('sentence-transformers/all-nli', 'pair', split='train').select(range(100_000))
args = SentenceTransformerTrainingArguments(
    output_dir='/out/embed',
    num_train_epochs=opts.epochs,
    per_device_train_batch_size=int(os.environ.get('BATCH', 16)),
    warmup_ratio=float(os.environ.get('WARMUP', '0.0')),
    fp16=True,
    save_steps=500,
    report_to=['tensorboard'],
)
trainer = SentenceTransformerTrainer(model=model, args=args, train_dataset=pairs, loss=MultipleNegativesRankingLoss(model))
trainer.train()
model.save_pretrained('/out/embed/final')
