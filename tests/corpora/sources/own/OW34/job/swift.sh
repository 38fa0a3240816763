nproc_per_node=4
MASTER_PORT=29501 \
CUDA_VISIBLE_DEVICES=0,1,2,3 \
NPROC_PER_NODE=$nproc_per_node \
swift sft \
    --model Qwen/Qwen2.5-VL-7B-Instruct \
    --train_type lora \
    --dataset 'AI-ModelScope/LaTeX_OCR:human_handwrite#20000' \
    --torch_dtype bfloat16 \
    --num_train_epochs 1 \
    --per_device_train_batch_size 1 \
    --learning_rate 1e-4 \
    --lora_rank 8 \
    --gradient_accumulation_steps $(expr 16 / $nproc_per_node) \
    --save_steps 50 \
    --logging_steps 5 \
    --output_dir output \
    --deepspeed zero2
