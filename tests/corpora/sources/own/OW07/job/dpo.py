from dataclasses import dataclass, field

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser
from transformers.trainer_utils import get_last_checkpoint
from trl import DPOConfig, DPOTrainer


@dataclass
class ScriptArguments:
    model_name_or_path: str = field(default='gpt2')
    dataset_name: str = field(default='Anthropic/hh-rlhf')
    max_prompt: int = 512


def main():
    parser = HfArgumentParser((ScriptArguments, DPOConfig))
    import sys
    if sys.argv[1].endswith('.json'):
        script, training = parser.parse_json_file(sys.argv[1])
    else:
        script, training = parser.parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(script.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(script.model_name_or_path, torch_dtype=torch.bfloat16)
    pairs = load_dataset(script.dataset_name, split='train_prefs')
    trainer = DPOTrainer(model, ref_model=None, args=training, train_dataset=pairs, processing_class=tokenizer)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(training.output_dir))
    trainer.save_model()


if __name__ == '__main__':
    main()
