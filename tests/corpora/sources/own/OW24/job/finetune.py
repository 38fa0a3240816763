import argparse

import wandb
from datasets import load_dataset
from transformers import (AutoModelForTokenClassification, AutoTokenizer, DataCollatorForTokenClassification, Trainer,
                          TrainingArguments)

parser = argparse.ArgumentParser()
parser.add_argument('--model', default='bert-base-cased')
parser.add_argument('--lr', type=float, default=2e-5)
parser.add_argument('--epochs', type=int, default=3)
parser.add_argument('--batch_size', type=int, default=16)
cli = parser.parse_args()

wandb.init(project='ner')
dataset = load_dataset('conll2003')
tokenizer = AutoTokenizer.from_pretrained(cli.model, add_prefix_space=True)
encoded = dataset.map(lambda b: align(tokenizer, b), batched=True)
training = TrainingArguments(
    output_dir='ner', learning_rate=cli.lr, num_train_epochs=cli.epochs, per_device_train_batch_size=cli.batch_size,
    evaluation_strategy='epoch', save_strategy='epoch', load_best_model_at_end=True, report_to='wandb', bf16=True,
)
model = AutoModelForTokenClassification.from_pretrained(cli.model, num_labels=9)
trainer = Trainer(model=model, args=training, train_dataset=encoded['train'], eval_dataset=encoded['validation'],
                  data_collator=DataCollatorForTokenClassification(tokenizer))
trainer.train()
