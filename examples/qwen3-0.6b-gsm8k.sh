#!/usr/bin/env bash
# Two GPUs: one trains while one samples the next rollout.
# MODEL: folder of Qwen/Qwen3-0.6B
# DATA: train.jsonl of GSM8K with the keys question and answer
exec miles train-async --preset qwen3-0.6b-gsm8k --hf-checkpoint "$MODEL" --prompt-data "$DATA" "$@"
