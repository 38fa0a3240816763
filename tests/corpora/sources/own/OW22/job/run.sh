unset CUDA_VISIBLE_DEVICES
task_name=sft_qwen
rm -rf output/$task_name/log
python -u -m paddle.distributed.launch --gpus "0,1,2,3,4,5,6,7" --log_dir output/$task_name/log run_finetune.py ./config/qwen/sft_argument.json
