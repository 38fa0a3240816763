from dataclasses import dataclass, field
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class ModelArgs:
    model_name_or_path: str = field(default="gpt2")


@dataclass
class DataArgs:
    dataset_name: str = field(default="imdb")
    block: int = field(default=1024)


def main():
    m, d, t = HfArgumentParser((ModelArgs, DataArgs, TrainingArguments)).parse_args_into_dataclasses()
    tok = AutoTokenizer.from_pretrained(m.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(m.model_name_or_path)
    ds = load_dataset(d.dataset_name, split="train").map(lambda r: tok(r["text"], truncation=True, max_length=d.block))
    trainer = Trainer(model=model, args=t, train_dataset=ds, data_collator=DataCollatorForLanguageModeling(tok, mlm=False))
    trainer.train(resume_from_checkpoint=t.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    main()
