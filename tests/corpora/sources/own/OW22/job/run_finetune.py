import sys
from dataclasses import dataclass, field

import paddle
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments, get_last_checkpoint
from paddlenlp.transformers import AutoModelForCausalLM, AutoTokenizer
from paddlenlp.datasets import load_dataset


@dataclass
class ModelArgument:
    model_name_or_path: str = field(default=None)


@dataclass
class DataArgument:
    dataset_name_or_path: str = field(default=None)
    src_length: int = 1024
    max_length: int = 2048


def main():
    parser = PdArgumentParser((ModelArgument, DataArgument, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith('.json'):
        model_args, data_args, training_args = parser.parse_json_file(json_file=sys.argv[1])
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    paddle.set_device(training_args.device)
    last = get_last_checkpoint(training_args.output_dir)
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, tensor_parallel_degree=training_args.tensor_parallel_degree)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    train = load_dataset(data_args.dataset_name_or_path, splits=['train'])
    trainer = Trainer(model=model, args=training_args, train_dataset=train, tokenizer=tokenizer)
    trainer.train(resume_from_checkpoint=last)


if __name__ == '__main__':
    main()
