"""The runner of script Jobs: what a provider starts beside a packed project (contract G: e.12, e.13, f).

It is shipped with the project, needs Python 3.8 and nothing else, and is started as
``python3 gpu_runner/__main__.py`` in the attempt's work folder::

    work/
      code/                      the shipped tree
      gpu_runner/                this package; gpu_runner/lib/gpu.py is what `import gpu` finds
      manifest.json              what to do, see `jobs.Job`
      outputs/                   $GPU_OUTPUT_DIR where the provider names no other folder
      data/NAME                  $GPU_DATA_DIR, likewise; hub datasets are fetched to here
      checkpoints/               $GPU_CHECKPOINT_DIR, likewise; what the program saves
      restored/                  the restored checkpoint: the program's $GPU_RESUME_DIR, if there is one
      checkpoint_store/          the checkpoints that outlive the Attempt; or $GPU_CHECKPOINT_STORE
      .gpu/                      the runner's own
        lock                     locked (flock, exclusive) while the runner lives; its text is the pid
        checkpoint_requested     made by whoever wants a checkpoint now; removed once one was stored that has
                                 something the program saved after that
        exit.json                the exit record, written by rename, whatever happened
        env/                     the program's virtual environment

Exit record (also the last line of the log, as ``exit``)::

    {"version": 1, "code": 0…255, "signal": n|null, "stage": "start|resume|data|install|script|internal",
     "stopped": bool, "message": "…", "started_at": unix s, "finished_at": unix s, "script_seconds": s|null,
     "checkpoint": n|null}

``code`` is the exit status of the runner too: the program's, 128+n if signal n ended it, 90 if a dependency
or a dataset could not be had (or the runner itself failed): never the program's fault. ``stopped`` says that
SIGTERM reached the runner before the program had ended. ``checkpoint`` is the newest one stored.

Checkpoint store::

    checkpoint_store/
      owner.json                 {"version": 1, "owner": "<random>", "attempt": n, "since": unix s}
      <n>/                       n = 1, 2, 3, …; never used twice. It appears by rename: it is complete
        manifest.json            {"version": 1, "n": n, "job": "…", "attempt": n, "step": n|null, "reason":
                                 "interval|requested|saved|exit|stop", "created_at": unix s, "bytes": n,
                                 "files": [{"path", "bytes", "sha256", "mtime_ns", …}]}, sorted by path
        files/<path>             the files, as they lay in $GPU_CHECKPOINT_DIR
      latest                     {"n": n, "sha256": "<of the bytes of n/manifest.json>"}, by rename, last
      .part-<random>/            being written; never read

A store has one owner: the runner that wrote ``owner.json`` last. A runner whose Attempt is older than the
owner's, or that finds another owner there, writes nothing more. Three checkpoints are kept. Files of two
checkpoints may be hard links to one another; they are never written again.

Engine's choice: ``GPU_RESUME_DIR`` as given to the *runner* is a folder like ``<n>/`` above, with its
``manifest.json`` and ``files/``. It is verified and copied to ``restored/``. If it is damaged, what
``latest`` names is tried, then older ones, and then the program starts fresh; the log says each.

Environment, besides that of the program: ``TRAINSHED_JOB_ID``, ``TRAINSHED_ATTEMPT``,
``TRAINSHED_PROTOCOL=1`` and, all optional and hidden from the program: ``TRAINSHED_ENV_CACHE`` (folder of
installed environments that Jobs share), ``TRAINSHED_STOP_GRACE_S`` (seconds between SIGTERM and SIGKILL, 10),
``TRAINSHED_CHECKPOINT_INTERVAL_S`` (instead of the manifest's minutes), ``TRAINSHED_HUB_TOKEN`` (for hub
datasets, where the program has none of its own) and ``TRAINSHED_HUB_ENDPOINT`` (the only hub that sees it,
else huggingface.co). ``HF_ENDPOINT``, which a Job may set, is the hub's address. The program also has
``TRAINSHED_CHECKPOINT_REQUEST``, the path of ``.gpu/checkpoint_requested``.

Wire lines: ``::gpu:: {json}`` on standard output, one a line; ``t`` is the kind::

    {"t": "hello", "protocol": 1, "job": "…", "attempt": n, "python": "3.11.7"}                  runner
    {"t": "device", "kind": "cuda|mps|cpu", "name": "NVIDIA H200"|null, "vram_gb": 139.8|null,
     "count": n}                                                                                  runner
    {"t": "total", "n": n}                                                                        helper
    {"t": "metric", "step": n|null, "values": {"loss": 0.5}}                                      helper
    {"t": "ckpt_begin", "where": "script|store", "name": "…"|null, "step": n|null}                both
    {"t": "ckpt_end", "where": "script|store", "ok": bool, "name": "…"|null, "step": n|null,
     "n": n|null, "bytes": n|null}                                                                both
    {"t": "exit", …the exit record without times}                                                 runner

``where`` is ``script`` while the program saves, ``store`` while the runner copies to the checkpoint store; a
checkpoint counts once its ``ckpt_end`` of the store said ``ok`` and ``n``. The runner passes on only what a
helper may say: a program cannot pose as the runner. The server reads the lines with
``trainshed.model.scripts.wire``.
"""
