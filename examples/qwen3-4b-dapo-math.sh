#!/usr/bin/env bash
# Eight GPUs: all of them sample and train in turn.
# MODEL: folder of Qwen/Qwen3-4B
# DATA: DAPO-Math-17k as JSONL with the keys prompt and label
exec miles train --preset qwen3-4b-dapo-math --hf-checkpoint "$MODEL" --prompt-data "$DATA" "$@"
