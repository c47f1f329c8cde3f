# Runs TRAINSHED_PARAM_RUN_COMMAND (set by --command) with bash; without one, shows what this Trial got.
# Files written below outputs/ become artifacts.
set -u
mkdir -p outputs

if [ -n "${TRAINSHED_PARAM_RUN_COMMAND:-}" ]; then
  exec bash -c "$TRAINSHED_PARAM_RUN_COMMAND"
fi

{
  echo "job:                  ${TRAINSHED_JOB_ID:-unknown}"
  echo "trial:                ${TRAINSHED_TRIAL_NAME:-unknown} (${TRAINSHED_TRIAL_ID:-unknown})"
  echo "attempt:              ${TRAINSHED_ATTEMPT_ID:-unknown}"
  echo "host:                 $(uname -n), $(uname -sr)"
  echo "date:                 $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "directory:            $PWD"
  echo "gpu model:            ${TRAINSHED_GPU_MODEL:-none}"
  echo "gpus:                 ${TRAINSHED_GPUS:-none}${TRAINSHED_GPUS_SIMULATED:+ (simulated)}"
  echo "CUDA_VISIBLE_DEVICES: ${CUDA_VISIBLE_DEVICES-not set}"
} | tee outputs/trial.txt
