#!/usr/bin/env bash
# Eight GPUs: four train while four sample.
# MODEL: folder of Qwen/Qwen3-4B
# DATA: DAPO-Math-17k as JSONL with the keys prompt and label
exec miles train-async --fully-async --preset qwen3-4b-fully-async --hf-checkpoint "$MODEL" --prompt-data "$DATA" "$@"
