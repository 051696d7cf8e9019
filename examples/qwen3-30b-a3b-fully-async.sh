#!/usr/bin/env bash
# One node of eight 141 GB GPUs: six train while two sample.
# MODEL: folder of Qwen/Qwen3-30B-A3B
# DATA: DAPO-Math-17k as JSONL with the keys prompt and label
exec miles train-async --fully-async --preset qwen3-30b-a3b-fully-async --hf-checkpoint "$MODEL" --prompt-data "$DATA" "$@"
